package runner

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/outbound"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/seed"
	"pando.run/pando/agent/steer"
	"pando.run/pando/agent/supply"
	"pando.run/pando/agent/work"
)

// Host is what the runners of one host share.
type Host struct {
	Name  pando.HostName
	Clock pando.Clock
	IDs   pando.IDs
	Log   *slog.Logger
	// Spawn runs a function until the agent ends.
	Spawn func(func(context.Context))
	// Serve returns the API of an instance.
	Serve    func(pando.InstanceID) http.Handler
	Prober   pando.Prober
	Steering pando.Steering
	Volumes  pando.Volumes // nil: no service of this host has a volume

	Records  *records.Records
	Branches *branch.Branches
	Tables   *steer.Queue
	Payments *outbound.Payments
	Sweeper  *flows.Sweeper
	Counter  *flows.Counter
	Supplier *supply.Supplier
	Seeds    *seed.Store
	Work     *work.Reader
	Agent    Agent
	Tally    Tally
}

// Agent is a runner's view of its agent.
type Agent interface {
	// Show takes the newest status of a runner.
	Show(r *Runner, now Status)
	// Remove forgets a runner that has ended.
	Remove(r *Runner)
	// FollowSources notes the services that the templates of a runner's spec name.
	FollowSources(r *Runner, s pando.Spec)
	// OnlyShare reports whether no other instance of the service has a share of new flows.
	OnlyShare(r *Runner) bool
	// OthersAnswer reports whether another instance of the service serves with its whole share.
	OthersAnswer(r *Runner) bool
	// ReadAsks brings the asks of a service that former agents wrote for instances of this host,
	// unless a read of them began after a place.
	ReadAsks(ctx context.Context, s pando.ServiceKey, after uint64) error
	// LeaveBy returns the deadline for connections when the host leaves, or zero if it stays.
	LeaveBy() time.Time
	// TakeSeed stores a snapshot of an instance as the seed of its revision.
	TakeSeed(ctx context.Context, r *Runner, plain bool, resumed func()) (pando.SealedSnapshot, error)
	// Departs notes the move of an instance.
	Departs(i pando.InstanceID, m pando.Move)
	// Stays forgets the move of an instance, which does not happen.
	Stays(i pando.InstanceID)
	// KeepHere takes the mark of a move from a runner that a former agent has marked.
	KeepHere(r *Runner, m pando.MoveMark)
	// Landed reports that the program of a move runs here.
	Landed(r *Runner, m pando.MoveMark)
	// HandOver sends the late packets of an instance that has moved to its new host.
	HandOver(r *Runner, box pando.Sandbox)
}

// Tally counts the work of the runners of one host since its start.
type Tally struct {
	Steps                           atomic.Int64
	Merges, MergesFailed, Conflicts atomic.Uint64
}

// pushed counts a merge of a branch into main.
func (t *Tally) pushed(r pando.MergeResult, err error) {
	if err != nil {
		t.MergesFailed.Add(1)
		return
	}
	t.Merges.Add(1)
	t.Conflicts.Add(uint64(len(r.Conflicts)))
}
