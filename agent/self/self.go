// Package self answers the requests of programs about themselves: how many instances their service
// has, their ends, their state and their events. It also asks for the first instance of a service
// that sleeps.
//
// It never decides an ask: control does.
package self

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/socket"
	"pando.run/pando/scale"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// API answers the instances of one host.
type API struct {
	Host      pando.HostName
	Records   *records.Records
	Branches  *branch.Branches
	Sandboxes pando.Sandboxes
	Steering  pando.Steering
	Sweeper   *flows.Sweeper
	Peers     pando.Peers
	// Control answers an ask in one durable write. If it is nil or unreachable, the API writes the
	// ask to the store, and the watch brings the answer.
	Control pando.Decider
	Clock   pando.Clock
	IDs     pando.IDs
	Log     *slog.Logger
	Spawn   func(func(context.Context)) // runs a function until the agent ends
	Agent   Agent

	door door
	vain vainStarts
}

// Agent is the view of the agent. The methods that take a world are for a caller that has it, with
// the lock of the records.
type Agent interface {
	// Runner returns the runner of an instance of this host.
	Runner(i pando.InstanceID) (*runner.Runner, error)
	// RunnerIn is Runner for a caller that has the world. Nil: there is none.
	RunnerIn(w *world.World, i pando.InstanceID) *runner.Runner
	// FellowsIn returns the youngest instances of the service of a runner that take flows, and the
	// number of all that do.
	FellowsIn(w *world.World, r *runner.Runner) (youngest []pando.InstanceStatus, all int)
	// Learn applies records ahead of the watch.
	Learn(brought []pando.Record)
	// Applied waits until this host steers services by a revision of the store.
	Applied(
		ctx context.Context, of []pando.ServiceKey, at pando.StoreRevision,
	) (missing string, err error)
	// MayWrite returns why this host takes no more data of an instance, or nil.
	MayWrite() error
}

var _ pando.Self = (*API)(nil)

// Describe implements pando.Self.
func (s *API) Describe(_ context.Context, i pando.InstanceID) (pando.SelfView, error) {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return pando.SelfView{}, err
	}
	s.Records.Lock()
	svc := s.Records.World.Services[r.Service].V
	v := pando.SelfView{
		Instance: r.StatusIn(s.Records.World).Instance, Scale: s.Records.World.Endpoints[r.Service].V.Scale,
		Pin: svc.Pin, Flows: s.Sweeper.Last().Flows[i],
	}
	v.Peers, v.InRotation = s.Agent.FellowsIn(s.Records.World, r)
	s.Records.Unlock()
	if svc.VIP4.IsValid() {
		v.VIP = svc.VIP4.String()
	}
	v.Pending, v.Metrics = r.Caller.Pending(), maps.Clone(r.Caller.Metrics())
	return v, nil
}

// Ready implements pando.Self.
func (s *API) Ready(ctx context.Context, i pando.InstanceID) error {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return err
	}
	r.ReportReady()
	if box := r.Status().Box; box != nil {
		// The sandbox stores the readiness, because the program does not repeat it to the next agent.
		return box.Notify(ctx)
	}
	return nil
}

// PutMetrics implements pando.Self.
func (s *API) PutMetrics(
	_ context.Context, i pando.InstanceID, m map[string]float64,
) error {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return err
	}
	if err := socket.CheckMetrics(m); err != nil {
		return err
	}
	r.Caller.SetMetrics(named(m))
	return nil
}

// Lead implements pando.Self.
func (s *API) Lead(_ context.Context, i pando.InstanceID, term int64) error {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return err
	}
	if inst := r.Status().Instance; inst.Ordinal == 0 || inst.Run != nil {
		return fmt.Errorf("%w: %s is no ordinal, so it cannot lead: `kind: stateful` in the spec of %s "+
			"makes ordinals", pando.ErrRefused, i, inst.Service)
	}
	r.ReportLead(term)
	return nil
}

// Events implements pando.Self.
func (s *API) Events(
	ctx context.Context, i pando.InstanceID, after uint64,
) (<-chan pando.SelfEvent, error) {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return nil, err
	}
	return r.Events.Stream(ctx, after), nil
}

// branch returns the branch of an instance. It waits while the branch of a new instance is being
// created.
func (s *API) branch(ctx context.Context, i pando.InstanceID) (*state.Branch, error) {
	if _, err := s.Agent.Runner(i); err != nil {
		return nil, err
	}
	return s.Branches.Of(ctx, i)
}

// StateGet implements pando.Self.
func (s *API) StateGet(
	ctx context.Context, i pando.InstanceID, path string,
) (pando.StateValue, error) {
	b, err := s.branch(ctx, i)
	if err != nil {
		return pando.StateValue{}, err
	}
	return b.Get(path)
}

// StateList implements pando.Self.
func (s *API) StateList(
	ctx context.Context, i pando.InstanceID, prefix string,
) ([]pando.StateEntry, error) {
	b, err := s.branch(ctx, i)
	if err != nil {
		return nil, err
	}
	return b.List(prefix)
}

// StatePut implements pando.Self.
func (s *API) StatePut(
	ctx context.Context, i pando.InstanceID, path string, value []byte,
) error {
	b, err := s.branch(ctx, i)
	if err = errors.Join(err, s.Agent.MayWrite()); err != nil {
		return err
	}
	return b.Put(path, value)
}

// StatePatch implements pando.Self.
func (s *API) StatePatch(
	ctx context.Context, i pando.InstanceID, path string, delta []byte,
) error {
	b, err := s.branch(ctx, i)
	if err = errors.Join(err, s.Agent.MayWrite()); err != nil {
		return err
	}
	return b.Patch(path, delta)
}

// StateDelete implements pando.Self.
func (s *API) StateDelete(ctx context.Context, i pando.InstanceID, path string) error {
	b, err := s.branch(ctx, i)
	if err != nil {
		return err
	}
	return b.Delete(path)
}

// StateCommit implements pando.Self.
func (s *API) StateCommit(
	ctx context.Context, i pando.InstanceID, c pando.StateChange,
) (pando.ObjectID, error) {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return pando.ObjectID{}, err
	}
	return s.Branches.Commit(ctx, r.Service, i, c)
}

// StatePull implements pando.Self.
func (s *API) StatePull(
	ctx context.Context, i pando.InstanceID,
) (pando.MergeResult, error) {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	return s.Branches.Pull(ctx, r.Service, i)
}

// StatePush implements pando.Self.
func (s *API) StatePush(
	ctx context.Context, i pando.InstanceID,
) (pando.MergeResult, error) {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	b, err := s.Branches.Of(ctx, i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	if _, err := b.Commit(ctx, "pushed by "+string(i), s.Clock.Now()); err != nil {
		return pando.MergeResult{}, err
	}
	return r.PushState(ctx)
}

// door bounds the asks of each service on this host, also while control is out of reach and each
// ask is written by this agent.
type door struct {
	mu sync.Mutex
	scale.Door
}

func (d *door) admit(s pando.ServiceKey, now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Admit(s, 0, now)
}
