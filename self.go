package pando

import (
	"context"
	"time"
)

// Self is what an instance may ask of its host. The agent implements it; package api serves it on the instance's own unix
// socket, which is the identity of the asker. Errors carry the sentinels of this package.
type Self interface {
	Describe(ctx context.Context, i InstanceID) (SelfView, error)
	// Ready says that the instance may take traffic. Saying it again changes nothing.
	Ready(ctx context.Context, i InstanceID) error
	// Replicate asks for one more instance. It returns once the ask is granted, coalesced or refused, durably; wait makes it
	// return once the new instance is in rotation or failed. ErrConflict: this instance has a request pending (the intent is
	// returned with it). ErrRefused: the reason names the budget.
	Replicate(ctx context.Context, i InstanceID, ask Ask) (Intent, error)
	// Halt takes the instance out of rotation. It returns once every ingress host that is alive has acknowledged, with the
	// hosts that did not. ErrRefused below min.
	Halt(ctx context.Context, i InstanceID, ask Ask) (HaltResult, error)
	// Die gives the sandbox up. ErrRefused before halt, and until the merge of the instance's state is durable.
	Die(ctx context.Context, i InstanceID, ask Ask) (Intent, error)
	PutMetrics(ctx context.Context, i InstanceID, m map[string]float64) error
	// Events streams what happens to the instance after an event id (0: from now), until ctx ends.
	Events(ctx context.Context, i InstanceID, after uint64) (<-chan SelfEvent, error)

	StateGet(ctx context.Context, i InstanceID, path string) (StateValue, error)
	StateList(ctx context.Context, i InstanceID, prefix string) ([]StateEntry, error)
	StatePut(ctx context.Context, i InstanceID, path string, value []byte) error
	// StatePatch applies a delta by the path's type: a number to add to a counter, lines to append to a log, "+member" and
	// "-member" lines to a set.
	StatePatch(ctx context.Context, i InstanceID, path string, delta []byte) error
	StateDelete(ctx context.Context, i InstanceID, path string) error
	// StateCommit makes a change and everything written so far survive the instance; durable on return. With an error
	// nothing of the change is written.
	StateCommit(ctx context.Context, i InstanceID, c StateChange) (ObjectID, error)
	// StatePull takes what others pushed into the instance's branch.
	StatePull(ctx context.Context, i InstanceID) (MergeResult, error)
	// StatePush commits, then merges the branch into main; durable on return.
	StatePush(ctx context.Context, i InstanceID) (MergeResult, error)
}

// Ask is what an application says when it asks for something.
type Ask struct {
	Reason string             `json:"reason,omitempty"`
	Inputs map[string]float64 `json:"inputs,omitempty"` // what it measured, its thresholds too
	Wait   bool               `json:"wait,omitempty"`
}

// HaltResult answers a halt.
type HaltResult struct {
	Intent      Intent     `json:"intent"`
	Unreachable []HostName `json:"unreachable,omitempty"` // hosts that could not acknowledge
}

// SelfView is what an instance sees of itself and of its service.
type SelfView struct {
	Instance Instance           `json:"instance"`
	VIP      string             `json:"vip"`
	Scale    Scale              `json:"scale"`
	Peers    []InstanceStatus   `json:"peers"` // every instance of the service that takes flows, itself included
	Pending  *Intent            `json:"pending,omitempty"`
	Pin      *Pin               `json:"pin,omitempty"`
	Metrics  map[string]float64 `json:"metrics,omitempty"` // the newest it has put
	Flows    int                `json:"flows"`
}

// SelfEventKind is what an instance is told.
type SelfEventKind string

const (
	EventDrained SelfEventKind = "drained" // its last flow ended: merge, then die
	EventHalted  SelfEventKind = "halted"  // someone else took it out of rotation: finish, merge, die
	EventPeers   SelfEventKind = "peers"   // who takes flows has changed
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

// StateChange is what one commit writes, all of it or nothing. A path stands in it once.
type StateChange struct {
	Message string            `json:"message,omitempty"`
	Put     map[string]string `json:"put,omitempty"`    // by path: the whole value
	Patch   map[string]string `json:"patch,omitempty"`  // by path: a delta, as in StatePatch
	Delete  []string          `json:"delete,omitempty"` // paths
}

// MergeResult is what a merge did.
type MergeResult struct {
	Commit    ObjectID `json:"commit"`              // of the branch after a pull, of main after a push
	Taken     int      `json:"taken"`               // paths that changed on one side only
	Merged    int      `json:"merged"`              // paths that changed on both sides
	Conflicts []string `json:"conflicts,omitempty"` // opaque paths of which both versions were kept
}
