package pando

import (
	"slices"
	"time"
)

// Verb is the request of an intent.
type Verb string

const (
	VerbReplicate Verb = "replicate" // one more instance
	VerbHalt      Verb = "halt"      // this instance takes no new flows
	VerbDie       Verb = "die"       // this instance's sandbox goes
)

// IntentState is the progress of an intent.
//
//	asked ──► granted ──► placed ──► starting ──► ready ──► in rotation        (replicate)
//	  │          └──────► draining ──► merged ──► dead                         (halt, then die)
//	  ├──► refused                                 any but the last ──► failed
//	  └──► coalesced (another ask of the same moment already does it)
//
// For replicate, only asked and granted are durable before the start. Granted and placed are one
// write. The store receives later states in the background.
type IntentState string

const (
	IntentAsked      IntentState = "asked"
	IntentGranted    IntentState = "granted"
	IntentRefused    IntentState = "refused"
	IntentCoalesced  IntentState = "coalesced"
	IntentPlaced     IntentState = "placed"
	IntentStarting   IntentState = "starting"
	IntentReady      IntentState = "ready"
	IntentInRotation IntentState = "in rotation"
	IntentDraining   IntentState = "draining"
	IntentMerged     IntentState = "merged"
	IntentDead       IntentState = "dead"
	IntentFailed     IntentState = "failed"
)

var intentNext = map[IntentState][]IntentState{
	IntentAsked:    {IntentGranted, IntentRefused, IntentCoalesced, IntentFailed},
	IntentGranted:  {IntentPlaced, IntentDraining, IntentMerged, IntentDead, IntentFailed},
	IntentPlaced:   {IntentStarting, IntentReady, IntentFailed},
	IntentStarting: {IntentReady, IntentFailed},
	IntentReady:    {IntentInRotation, IntentFailed},
	IntentDraining: {IntentMerged, IntentDead, IntentFailed},
	IntentMerged:   {IntentDead, IntentFailed},
}

// May reports whether an intent in state s may move to state t.
func (s IntentState) May(t IntentState) bool { return slices.Contains(intentNext[s], t) }

// Ended reports whether this state is final.
func (s IntentState) Ended() bool { return len(intentNext[s]) == 0 }

// AskerKind is the kind of an asker.
type AskerKind string

const (
	AskerInstance AskerKind = "instance"
	AskerOperator AskerKind = "operator"
	AskerScaler   AskerKind = "scaler"  // the built-in client that reads steering counters
	AskerControl  AskerKind = "control" // min, recovery, rollout
)

// Asker is the author of an intent or a decision.
type Asker struct {
	Kind AskerKind `json:"kind"`
	Name string    `json:"name,omitempty"`
	// Request names the request. A request that arrives again is not done again.
	Request string `json:"request,omitempty"`
	// Seen is the version of the service that the asker decided on (ServiceStatus.Version); 0
	// matches any.
	Seen StoreRevision `json:"seen,omitempty"`
}

func (a Asker) String() string {
	if a.Name == "" {
		return string(a.Kind)
	}
	return string(a.Kind) + " " + a.Name
}

// Intent is a request with its reason and its state. History has every step: an intent never
// changes silently.
type Intent struct {
	ID       IntentID           `json:"id"` // sorts by time of birth
	Service  ServiceKey         `json:"service"`
	Verb     Verb               `json:"verb"`
	By       Asker              `json:"by"`
	Host     HostName           `json:"host,omitempty"`     // of the asker, then of the placement
	Instance InstanceID         `json:"instance,omitempty"` // the one that starts or leaves
	State    IntentState        `json:"state"`
	Reason   string             `json:"reason"`           // of the state
	Inputs   map[string]float64 `json:"inputs,omitempty"` // of the decision, with its thresholds
	History  []Transition       `json:"history"`
}

// Transition is one step of an intent.
type Transition struct {
	State  IntentState `json:"state"`
	At     time.Time   `json:"at"`
	Reason string      `json:"reason"`
}

// Become returns the intent in state s and adds the step to its history. An illegal step is a
// programming error.
func (i Intent) Become(s IntentState, at time.Time, reason string) Intent {
	if i.State != "" && !i.State.May(s) {
		panic("intent " + string(i.ID) + ": " + string(i.State) + " cannot become " + string(s))
	}
	i.State, i.Reason = s, reason
	i.History = append(slices.Clip(i.History), Transition{State: s, At: at, Reason: reason})
	return i
}

// Asked returns the time of the first step.
func (i Intent) Asked() time.Time {
	if len(i.History) == 0 {
		return time.Time{}
	}
	return i.History[0].At
}

// DecisionKind is the kind of a decision or an observation that is not an intent.
type DecisionKind string

const (
	DecidedDeploy    DecisionKind = "deploy"
	DecidedRemove    DecisionKind = "remove"
	DecidedPin       DecisionKind = "pin"
	DecidedUnpin     DecisionKind = "unpin"
	DecidedNothing   DecisionKind = "nothing" // the request changed nothing
	DecidedFailed    DecisionKind = "failed"  // an instance exited or never became ready
	DecidedBackOff   DecisionKind = "back-off"
	DecidedUnhealthy DecisionKind = "unhealthy"
	DecidedRollout   DecisionKind = "rollout" // a step of it
	DecidedRollback  DecisionKind = "rollback"
	DecidedConflict  DecisionKind = "conflict"    // two versions of a state path were both kept
	DecidedSalvage   DecisionKind = "salvage"     // a crashed instance's branch was merged
	DecidedDrainEnd  DecisionKind = "drain-ended" // drain_seconds_max ended flows; Inputs counts them
	DecidedHostLost  DecisionKind = "host-lost"
	DecidedUnwritten DecisionKind = "unwritten" // in a status only: the store refuses the write
)

// Decision is one decision or observation of Pando, with its author, reason, inputs and threshold.
type Decision struct {
	ID       string             `json:"id"` // sorts by time
	Service  ServiceKey         `json:"service"`
	Instance InstanceID         `json:"instance,omitempty"`
	Kind     DecisionKind       `json:"kind"`
	By       Asker              `json:"by"`
	Reason   string             `json:"reason"`
	Inputs   map[string]float64 `json:"inputs,omitempty"`
	Lines    []string           `json:"lines,omitempty"` // a probe's answer, the end of a log
	At       time.Time          `json:"at"`
}
