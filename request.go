package pando

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
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
	IntentAsked      IntentState = "asked"       // stored, without an answer
	IntentGranted    IntentState = "granted"     // within the budget
	IntentRefused    IntentState = "refused"     // final; the reason names the budget
	IntentCoalesced  IntentState = "coalesced"   // final; another ask of the same moment does it
	IntentPlaced     IntentState = "placed"      // the new instance has a host
	IntentStarting   IntentState = "starting"    // its program runs
	IntentReady      IntentState = "ready"       // it may take traffic
	IntentInRotation IntentState = "in rotation" // final; it takes new flows
	IntentDraining   IntentState = "draining"    // the instance takes no new flows
	IntentMerged     IntentState = "merged"      // its state is in main
	IntentDead       IntentState = "dead"        // final; its sandbox is gone
	IntentFailed     IntentState = "failed"      // final; the reason has the cause
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

// Known reports whether this build has the state. A newer build may write others.
func (s IntentState) Known() bool {
	if len(intentNext[s]) > 0 {
		return true
	}
	switch s {
	case IntentRefused, IntentCoalesced, IntentInRotation, IntentDead, IntentFailed:
		return true
	}
	return false
}

// Ended reports whether this state is final.
func (s IntentState) Ended() bool { return len(intentNext[s]) == 0 }

// AskerKind is the kind of an asker.
type AskerKind string

const (
	AskerInstance AskerKind = "instance" // an application, for itself
	AskerOperator AskerKind = "operator" // a person or a person's program
	AskerScaler   AskerKind = "scaler"   // the built-in client that reads steering counters
	AskerControl  AskerKind = "control"  // min, recovery, rollout
	AskerTraffic  AskerKind = "traffic"  // a first packet to a service without an instance
)

// Asker is the author of an intent or a decision.
type Asker struct {
	Kind AskerKind `json:"kind"`
	Name string    `json:"name,omitempty"`
	// Request names the request. A request that arrives again is not done again.
	Request string `json:"request,omitempty"`
	// Digest is of the content of the request. Another content under the same name is refused.
	Digest string `json:"digest,omitempty"`
	// Seen is the version of the service that the asker decided on (ServiceStatus.Version); 0
	// matches any.
	Seen StoreRevision `json:"seen,omitempty"`
}

// String returns the kind, with the name if there is one.
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
	From     string             `json:"from,omitempty"`   // the snapshot that the instance continues
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

// Check returns nil if this build can follow the record, else the reason.
func (i Intent) Check() error {
	if i.State != "" && !i.State.Known() {
		return fmt.Errorf("%w: state %q of intent %s is not one that this build knows",
			ErrInvalid, i.State, i.ID)
	}
	return nil
}

// Asked returns the time of the first step.
func (i Intent) Asked() time.Time {
	if len(i.History) == 0 {
		return time.Time{}
	}
	return i.History[0].At
}

// Changed returns the time of the last step.
func (i Intent) Changed() time.Time {
	if len(i.History) == 0 {
		return time.Time{}
	}
	return i.History[len(i.History)-1].At
}

// Why returns the reason of the first step: the asker's.
func (i Intent) Why() string {
	if len(i.History) == 0 {
		return i.Reason
	}
	return i.History[0].Reason
}

// Self is every request that an instance may make of its host. The agent implements it. Package api
// serves it on the instance's own unix socket, and that socket identifies the asker. Errors wrap
// the sentinels of this package.
type Self interface {
	// Describe returns the instance's view of itself and of its service.
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
	// PutMetrics stores measurements of the application. `pando status` shows them.
	PutMetrics(ctx context.Context, i InstanceID, m map[string]float64) error
	// Lead reports that an ordinal leads its service in a term, or with term 0 that it follows. The
	// name of the leader belongs to the highest term. ErrRefused: the service is not stateful.
	Lead(ctx context.Context, i InstanceID, term int64) error
	// Events streams the events of the instance after an event id (0: from now), until ctx ends.
	Events(ctx context.Context, i InstanceID, after uint64) (<-chan SelfEvent, error)

	// StateGet returns the value of a path of the branch, or ErrNotFound.
	StateGet(ctx context.Context, i InstanceID, path string) (StateValue, error)
	// StateList lists the paths of the branch under a prefix.
	StateList(ctx context.Context, i InstanceID, prefix string) ([]StateEntry, error)
	// StatePut writes the whole value of a path.
	StatePut(ctx context.Context, i InstanceID, path string, value []byte) error
	// StatePatch applies a delta by the path's type. A counter takes a number to add, a log takes
	// lines to append, a set takes "+member" and "-member" lines.
	StatePatch(ctx context.Context, i InstanceID, path string, delta []byte) error
	// StateDelete deletes a path.
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

// PeersMax bounds the peers in the view of an instance, so that a view costs the same in a service
// of any size.
const PeersMax = 32

// SelfView is an instance's view of itself and of its service.
type SelfView struct {
	Instance Instance `json:"instance"`
	VIP      string   `json:"vip"`
	Scale    Scale    `json:"scale"`
	// Peers are instances of the service that take flows: the youngest PeersMax, and itself.
	Peers []InstanceStatus `json:"peers"`
	// InRotation counts all instances of the service that take flows.
	InRotation int                `json:"in_rotation"`
	Pending    *Intent            `json:"pending,omitempty"`
	Pin        *Pin               `json:"pin,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"` // its newest put
	Flows      int                `json:"flows"`
}

// SelfEventKind is the kind of an event for an instance.
type SelfEventKind string

const (
	EventDrained  SelfEventKind = "drained"  // its last flow ended: merge, then die
	EventHalted   SelfEventKind = "halted"   // out of rotation by another: finish, merge, die
	EventPeers    SelfEventKind = "peers"    // the set of instances that take flows has changed
	EventBudget   SelfEventKind = "budget"   // min, max or a pin has changed
	EventState    SelfEventKind = "state"    // main has moved; Data names the commit
	EventSnapshot SelfEventKind = "snapshot" // a snapshot follows in a moment
	EventRestored SelfEventKind = "restored" // the program continues from a snapshot
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

// Operators is every request that people and their programs may make of a cluster. The control room
// implements it and package api serves it over HTTP. The CLI and the SDKs use
// nothing else.
type Operators interface {
	// Deploy makes the spec the newest revision of its service, and creates the service if it is
	// new. A spec equal to the newest one changes nothing. The asker is the operator.
	//
	// Every method that changes a service acts once per Request of its asker, as long as the
	// service keeps the decision. It returns ErrConflict when the asker's Seen is not the service's
	// version.
	Deploy(ctx context.Context, s Spec, by Asker) (ServiceStatus, error)
	// Rollback deploys the spec of an older revision of a service. to 0 is the serving revision
	// during a rollout, else the newest that served before it with another spec. reason is recorded.
	// ErrRefused: it would change nothing, or that revision failed.
	Rollback(
		ctx context.Context, s ServiceKey, to int, reason string, by Asker,
	) (ServiceStatus, error)
	Rollouts
	RunOperators
	Recoveries
	// Revisions returns the stored revisions of a service, oldest first.
	Revisions(ctx context.Context, s ServiceKey) ([]Revision, error)
	// Remove drains and merges every instance, then deletes the service. The state stays unless
	// purge is set.
	Remove(ctx context.Context, s ServiceKey, purge bool, by Asker) error
	// Pin fixes the number of instances for the time keep (0: until Unpin).
	Pin(
		ctx context.Context, s ServiceKey, instances int, keep time.Duration, by Asker,
	) (ServiceStatus, error)
	// Unpin makes scaling automatic again.
	Unpin(ctx context.Context, s ServiceKey, by Asker) (ServiceStatus, error)

	// Services returns every service.
	Services(ctx context.Context) ([]ServiceStatus, error)
	// Service returns one service, or ErrNotFound.
	Service(ctx context.Context, s ServiceKey) (ServiceStatus, error)
	// Why lists intents and decisions of a service, ordered by their newest step, newest last. max
	// 0 returns all.
	Why(ctx context.Context, s ServiceKey, max int) ([]Because, error)
	// Fits reports for each host, in order, whether the next instance of a service may start there.
	Fits(ctx context.Context, s ServiceKey) ([]HostFit, error)
	// Figures returns the counts of this server.
	Figures(ctx context.Context) (ServerFigures, error)
	// Hosts lists every member, present or away.
	Hosts(ctx context.Context) ([]HostStatus, error)
	// RemoveHost ends the membership of a host: its name and slot are free, its certificate is
	// void, and its instances are deleted from the store. ErrRefused: the server runs there.
	// Without force, also: the host is present with instances, or keeps states.
	RemoveHost(ctx context.Context, h HostName, force bool, by Asker) error
	RightOperators
	GrantOperators
	// Watch sends every change to services, instances, intents and decisions after a store revision
	// (0: from now). It ends with ctx. A last change with Err set reports that history is
	// compacted.
	Watch(ctx context.Context, after StoreRevision) <-chan Change

	// Logs returns the lines of instance i, running or gone, that a query wants. With i "" it
	// returns those of all running instances, or of the newest dead one if none runs. Follow then
	// includes instances that start later.
	Logs(ctx context.Context, s ServiceKey, i InstanceID, q LogQuery) (LogLines, error)
	// Exec runs a command inside instance i, or inside the first that serves with i "". The connection
	// carries the frames of api/session. Its start and its exit code are recorded.
	Exec(
		ctx context.Context, s ServiceKey, i InstanceID, spec SessionSpec, by Asker,
	) (io.ReadWriteCloser, error)
	// Stats returns the use of a service's instances, or of all instances for the zero key, with one
	// request per host. An instance on a host that does not answer has the reason in Missing.
	Stats(ctx context.Context, s ServiceKey) ([]InstanceUsage, error)
	// Volumes returns volumes on all hosts, with one request per host. A host that does not answer
	// has one entry, with the reason in Missing.
	Volumes(ctx context.Context, q VolumeQuery) ([]KeptVolume, error)
	// RemoveVolume deletes a volume of a service with its files. ErrRefused: the service has it in
	// its spec. ErrUnavailable: a host that may have it does not answer.
	RemoveVolume(ctx context.Context, s ServiceKey, name string, by Asker) error
	SecretOperators
	SnapshotOperators
	MoveOperators
	// Steering reports for each host with a lease whether it steers services by their newest
	// endpoints. It waits for their confirmations, at most SteeringWaitMax, with one request per
	// host. A host that loses its lease meanwhile is left out. ErrNotFound: no such service.
	Steering(ctx context.Context, of []ServiceKey, wait time.Duration) ([]HostSteering, error)
	// Counters returns the counters of a service's endpoints on all hosts.
	Counters(ctx context.Context, s ServiceKey) ([]EndpointCounters, error)
	// StateLog returns the newest commits of a service's state. max 0 returns all.
	StateLog(ctx context.Context, s ServiceKey, max int) ([]StateCommit, error)
	// State answers git's read-only smart HTTP protocol below /state/.
	State() http.Handler
}

// ServiceStatus is the output of `pando status NAME -o json`.
type ServiceStatus struct {
	Service
	VIP   string `json:"vip"` // VIP4 as text, for curl
	DNS   string `json:"dns"` // website.pando
	Ports []Port `json:"ports"`
	Scale Scale  `json:"scale"`
	// Spec is the target revision's, with defaults. Only an answer about one service has it.
	Spec       *Spec            `json:"spec,omitempty"`
	InRotation int              `json:"in_rotation"`
	Instances  []InstanceStatus `json:"instances"`
	// Keeper has the hosts of its state, if they are several.
	Keeper *Keeper `json:"keeper,omitempty"`
	// Problem is the newest failure that still holds, or the reason why writes fail.
	Problem *Decision     `json:"problem,omitempty"`
	Version StoreRevision `json:"version"` // of the service's record: its ETag
	Seen    StoreRevision `json:"seen"`    // the newest commit in the status: a watch continues here

	// Failures counts the instances that failed since the newest deploy, among the decisions still
	// kept.
	Failures int `json:"failures,omitempty"`

	// Warnings are risks of the spec. Only the answer to a deploy has them.
	Warnings []string `json:"warnings,omitempty"`
}

// InstanceStatus is one line of `pando ps`.
type InstanceStatus struct {
	Instance
	Endpoint string `json:"endpoint"`       // ip:port, "" before it has an address
	Away     string `json:"away,omitempty"` // the host is away: the phase is the last one reported
}

// DrainsOf returns what the draining instances of a service wait for, or "".
func DrainsOf(all []InstanceStatus) (text string) {
	n := 0
	for _, i := range all {
		if i.Phase != PhaseDraining {
			continue
		}
		n++
		if why := cmp.Or(i.Waits, i.Away); text == "" && why != "" {
			text = string(i.ID) + " " + why
		}
	}
	switch {
	case n == 0:
		return ""
	case text == "":
		return fmt.Sprintf("%d of its instances drain", n)
	case n > 1:
		return fmt.Sprintf("%d of its instances drain: %s", n, text)
	}
	return text
}

// Because is one entry of `pando why`: an intent or a decision.
type Because struct {
	At       time.Time `json:"at"`
	Intent   *Intent   `json:"intent,omitempty"`
	Decision *Decision `json:"decision,omitempty"`
	// Created is the commit that recorded it. It orders what several hosts wrote by their clocks.
	Created StoreRevision `json:"created"`
}

// HostFit is one line of `pando why --pending`: a host as the place of a service's next instance.
type HostFit struct {
	Host      HostName `json:"host"`
	Instances int      `json:"instances"` // of the service, that run there or soon will
	Next      bool     `json:"next"`      // the next instance starts there
	Takes     bool     `json:"takes"`     // it could start there
	Reason    string   `json:"reason"`
}

// KindBookmark marks the first event of a watch. The caller has everything up to its revision;
// later changes follow.
const KindBookmark Kind = "bookmark"

// Change is one event of a watch.
type Change struct {
	Revision StoreRevision `json:"revision"`
	Kind     Kind          `json:"kind"`
	Key      Key           `json:"key"`
	Deleted  bool          `json:"deleted,omitempty"`
	More     bool          `json:"more,omitempty"`  // further changes of the same commit follow
	Value    any           `json:"value,omitempty"` // Service, Instance, Intent or Decision
	Err      error         `json:"-"`
}

// Decider sends an agent's ask straight to the leader of control. One durable write then holds the
// ask, its answer and the consequences. driver/cluster/peer implements it over HTTP.
type Decider interface {
	// Answer returns the records that the answer wrote: of the intent and of its instance. The
	// fence entitles the asking host. Answer calls sent at most once, before it returns. The ask is
	// then on its way, and the caller can only wait.
	//
	// ErrFenced and ErrStoreFull are final. After any other error the ask may or may not be
	// written. The caller then writes the ask itself, on condition that its key does not exist.
	Answer(ctx context.Context, by Fence, ask Intent, sent func()) ([]Record, error)
}
