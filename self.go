package pando

import (
	"context"
	"time"
)

// Self is every request that an instance may make of its host. The agent implements it. Package api
// serves it on the instance's own unix socket, and that socket identifies the asker. Errors wrap
// the sentinels of this package.
type Self interface {
	Describe(ctx context.Context, i InstanceID) (SelfView, error)
	// Ready reports that the instance may take traffic. A second call changes nothing.
	Ready(ctx context.Context, i InstanceID) error
	// Replicate asks for one more instance. It returns once the grant, the refusal or the
	// coalescing is durable. With ask.Wait it returns once the new instance is in rotation or
	// failed.
	//
	// ErrConflict: this instance has a request pending, and its intent is returned. ErrRefused: the
	// reason names the budget.
	Replicate(ctx context.Context, i InstanceID, ask Ask) (Intent, error)
	// Halt takes the instance out of rotation. It returns once every ingress host that is alive has
	// acknowledged, and lists the hosts that did not. ErrRefused below min.
	Halt(ctx context.Context, i InstanceID, ask Ask) (HaltResult, error)
	// Die asks for the end of the sandbox. ErrRefused before halt, and until the merge of the
	// instance's state is durable.
	Die(ctx context.Context, i InstanceID, ask Ask) (Intent, error)
	PutMetrics(ctx context.Context, i InstanceID, m map[string]float64) error
	// Events streams the events of the instance after an event id (0: from now), until ctx ends.
	Events(ctx context.Context, i InstanceID, after uint64) (<-chan SelfEvent, error)

	StateGet(ctx context.Context, i InstanceID, path string) (StateValue, error)
	StateList(ctx context.Context, i InstanceID, prefix string) ([]StateEntry, error)
	StatePut(ctx context.Context, i InstanceID, path string, value []byte) error
	// StatePatch applies a delta by the path's type. A counter takes a number to add, a log takes
	// lines to append, a set takes "+member" and "-member" lines.
	StatePatch(ctx context.Context, i InstanceID, path string, delta []byte) error
	StateDelete(ctx context.Context, i InstanceID, path string) error
	// StateCommit makes a change and all earlier writes survive the instance. They are durable on
	// return. With an error it writes nothing of the change.
	StateCommit(ctx context.Context, i InstanceID, c StateChange) (ObjectID, error)
	// StatePull merges the pushes of others into the instance's branch.
	StatePull(ctx context.Context, i InstanceID) (MergeResult, error)
	// StatePush commits, then merges the branch into main. Both are durable on return.
	StatePush(ctx context.Context, i InstanceID) (MergeResult, error)
}

// Ask is the request of an application.
type Ask struct {
	Reason string             `json:"reason,omitempty"`
	Inputs map[string]float64 `json:"inputs,omitempty"` // its measurements and thresholds
	Wait   bool               `json:"wait,omitempty"`
}

// HaltResult answers a halt.
type HaltResult struct {
	Intent      Intent     `json:"intent"`
	Unreachable []HostName `json:"unreachable,omitempty"` // hosts that could not acknowledge
}

// SelfView is an instance's view of itself and of its service.
type SelfView struct {
	Instance Instance           `json:"instance"`
	VIP      string             `json:"vip"`
	Scale    Scale              `json:"scale"`
	Peers    []InstanceStatus   `json:"peers"` // all instances of the service that take flows
	Pending  *Intent            `json:"pending,omitempty"`
	Pin      *Pin               `json:"pin,omitempty"`
	Metrics  map[string]float64 `json:"metrics,omitempty"` // its newest put
	Flows    int                `json:"flows"`
}

// SelfEventKind is the kind of an event for an instance.
type SelfEventKind string

const (
	EventDrained SelfEventKind = "drained" // its last flow ended: merge, then die
	EventHalted  SelfEventKind = "halted"  // another asker took it out of rotation: finish, merge, die
	EventPeers   SelfEventKind = "peers"   // the set of instances that take flows has changed
	EventBudget  SelfEventKind = "budget"  // min, max or a pin has changed
	EventState   SelfEventKind = "state"   // main has moved; Data names the commit, or the conflicts
	EventIntent  SelfEventKind = "intent"  // one of its own requests changed state
)

// SelfEvent is one server-sent event of GET /v1/self/events.
type SelfEvent struct {
	ID   uint64        `json:"id"`
	Kind SelfEventKind `json:"kind"`
	At   time.Time     `json:"at"`
	Data any           `json:"data,omitempty"`
}

// StateValue is the content of one path.
type StateValue struct {
	Type  StateType
	Bytes []byte
}

// StateEntry is one path of a listing.
type StateEntry struct {
	Path  string    `json:"path"`
	Type  StateType `json:"type"`
	Bytes int64     `json:"bytes"`
}

// StateChange is the writes of one commit, all or nothing. A path occurs in it at most once.
type StateChange struct {
	Message string            `json:"message,omitempty"`
	Put     map[string]string `json:"put,omitempty"`    // by path: the whole value
	Patch   map[string]string `json:"patch,omitempty"`  // by path: a delta, as in StatePatch
	Delete  []string          `json:"delete,omitempty"` // paths
}

// MergeResult is the outcome of a merge.
type MergeResult struct {
	Commit    ObjectID `json:"commit"`              // of the branch after a pull, of main after a push
	Taken     int      `json:"taken"`               // paths that changed on one side only
	Merged    int      `json:"merged"`              // paths that changed on both sides
	Conflicts []string `json:"conflicts,omitempty"` // opaque paths that kept both versions
}
