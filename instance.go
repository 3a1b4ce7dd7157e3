package pando

import (
	"net/netip"
	"slices"
	"time"
)

// Phase is one step in the life of an instance.
//
//	placed ──► starting ──► ready ──► in rotation ──► draining ──► drained ──► merged ──► dead
//	              │ ▲          │            │             │            │
//	              ▼ │          └────────────┴──────┬──────┴────────────┘
//	             warm                              ▼
//	              └──────────────────────────►  failed ─────────────────────► merged (salvage)
//
// Control writes placed and draining. A warm start is control writing placed over warm. The agent
// of the instance's host writes the others. It also writes draining if the instance fails its live
// probes. A dead instance has no record: its end is in its intent and in the decisions.
type Phase string

const (
	PhasePlaced     Phase = "placed"
	PhaseStarting   Phase = "starting"
	PhaseWarm       Phase = "warm" // fully started, then stopped: in reserve, no capacity
	PhaseReady      Phase = "ready"
	PhaseInRotation Phase = "in rotation"
	PhaseDraining   Phase = "draining" // takes no new flows
	PhaseDrained    Phase = "drained"  // its last flow ended
	PhaseFailed     Phase = "failed"   // exited, was killed or never became ready
	PhaseMerged     Phase = "merged"   // its state is in main; it may be removed
	PhaseDead       Phase = "dead"
)

var phaseNext = map[Phase][]Phase{
	PhasePlaced:     {PhaseStarting, PhaseDraining, PhaseFailed},
	PhaseStarting:   {PhaseWarm, PhaseReady, PhaseDraining, PhaseFailed},
	PhaseWarm:       {PhasePlaced, PhaseDraining, PhaseFailed},
	PhaseReady:      {PhaseInRotation, PhaseDraining, PhaseFailed},
	PhaseInRotation: {PhaseReady, PhaseDraining, PhaseFailed},
	PhaseDraining:   {PhaseDrained, PhaseFailed},
	PhaseDrained:    {PhaseMerged, PhaseFailed},
	PhaseFailed:     {PhaseMerged},
	PhaseMerged:     {PhaseDead},
}

// May reports whether an instance in phase p may move to phase q.
func (p Phase) May(q Phase) bool { return slices.Contains(phaseNext[p], q) }

// Known reports whether this build has the phase. A newer build may write others.
func (p Phase) Known() bool { return len(phaseNext[p]) > 0 || p == PhaseDead }

// Capacity reports whether the instance counts against max: it serves or soon will. A reserve does
// not.
func (i Instance) Capacity() bool {
	return !i.Warm && slices.Contains([]Phase{PhasePlaced, PhaseStarting, PhaseReady, PhaseInRotation}, i.Phase)
}

// Become returns the instance in phase q since at, with the reason. An illegal step is a
// programming error.
func (i Instance) Become(q Phase, at time.Time, reason string) Instance {
	if !i.Phase.May(q) {
		panic("instance " + string(i.ID) + ": " + string(i.Phase) + " cannot become " + string(q))
	}
	i.Phase, i.Since, i.Reason = q, at, reason
	return i
}

// TakesFlows reports whether steering may send new flows to an instance in this phase.
func (p Phase) TakesFlows() bool { return p == PhaseReady || p == PhaseInRotation }

// KeepsFlows reports whether an instance in this phase keeps its established flows.
func (p Phase) KeepsFlows() bool { return p.TakesFlows() || p == PhaseDraining || p == PhaseDrained }

// Leaving reports whether the instance is about to end.
func (p Phase) Leaving() bool {
	return p == PhaseDraining || p == PhaseDrained || p == PhaseMerged || p == PhaseDead
}

// Role records whether an instance was the first of its service.
type Role string

const (
	RoleFirst   Role = "first"
	RoleReplica Role = "replica"
)

// Instance is the record of one running copy of a service.
type Instance struct {
	ID       InstanceID `json:"id"`
	Service  ServiceKey `json:"service"`
	Host     HostName   `json:"host"`
	Revision int        `json:"revision"`
	Weight   int        `json:"weight"` // share of new flows; 100 is one whole share
	Role     Role       `json:"role"`
	Warm     bool       `json:"warm,omitempty"` // a reserve until it is claimed
	Phase    Phase      `json:"phase"`
	Reason   string     `json:"reason"`         // of the last change
	Intent   IntentID   `json:"intent"`         // the intent that started it
	Halt     IntentID   `json:"halt,omitempty"` // the intent that ends it
	IP4      netip.Addr `json:"ip4,omitzero"`
	IP6      netip.Addr `json:"ip6,omitzero"`
	// Walk is set if the instance did not ask for its own drain. Its agent stops it once it is
	// drained.
	Walk  bool      `json:"walk,omitempty"`
	Since time.Time `json:"since"` // start of the phase
	Born  time.Time `json:"born"`
	Exit  *Exit     `json:"exit,omitempty"`
}

// Exit is the end of an instance's program.
type Exit struct {
	Code      int      `json:"code"`
	Signal    string   `json:"signal,omitempty"`
	OOMKilled bool     `json:"oom_killed,omitempty"`
	LastLines []string `json:"last_lines,omitempty"` // of its log, at most 20
}
