package pando

import "time"

// HealthState is the health of an instance, as its probes show it.
type HealthState string

const (
	HealthStarting   HealthState = "starting"   // it has not been ready yet
	HealthReady      HealthState = "ready"      // it serves
	HealthOverloaded HealthState = "overloaded" // it works and answers late: it gets fewer new flows
	HealthDead       HealthState = "dead"       // it ended, or answers no more
)

// AnswersKept is the number of answers to probes that a host keeps of each instance.
const AnswersKept = 5

// ProbeAnswer is the answer of an instance to one probe.
type ProbeAnswer struct {
	At    time.Time `json:"at"`
	Probe ProbeKind `json:"probe"`
	Error string    `json:"error,omitempty"` // "": a good answer
}
