package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/scale"
	"pando.run/pando/state"
)

// selfAPI serves the instances of this host.
type selfAPI struct{ a *Agent }

var _ pando.Self = (*selfAPI)(nil)

// Describe implements pando.Self.
func (s *selfAPI) Describe(_ context.Context, i pando.InstanceID) (pando.SelfView, error) {
	r, err := s.a.crews.runner(i)
	if err != nil {
		return pando.SelfView{}, err
	}
	s.a.records.Lock()
	svc := s.a.records.World.Services[r.Service].V
	v := pando.SelfView{
		Instance: r.StatusIn(s.a.records.World).Instance, Scale: s.a.records.World.Endpoints[r.Service].V.Scale,
		Pin: svc.Pin, Flows: s.a.sweeper.Last().Flows[i],
	}
	v.Peers, v.InRotation = s.a.crews.fellows(r)
	s.a.records.Unlock()
	if svc.VIP4.IsValid() {
		v.VIP = svc.VIP4.String()
	}
	v.Pending, v.Metrics = r.Caller.Pending(), maps.Clone(r.Caller.Metrics())
	return v, nil
}

// Ready implements pando.Self.
func (s *selfAPI) Ready(ctx context.Context, i pando.InstanceID) error {
	r, err := s.a.crews.runner(i)
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
func (s *selfAPI) PutMetrics(
	_ context.Context, i pando.InstanceID, m map[string]float64,
) error {
	r, err := s.a.crews.runner(i)
	if err != nil {
		return err
	}
	return r.Caller.SetMetrics(named(m))
}

// Lead implements pando.Self.
func (s *selfAPI) Lead(_ context.Context, i pando.InstanceID, term int64) error {
	r, err := s.a.crews.runner(i)
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
func (s *selfAPI) Events(
	ctx context.Context, i pando.InstanceID, after uint64,
) (<-chan pando.SelfEvent, error) {
	r, err := s.a.crews.runner(i)
	if err != nil {
		return nil, err
	}
	return r.Events.Stream(ctx, after), nil
}

// branch returns the branch of an instance. It waits while the branch of a new instance is being
// created.
func (s *selfAPI) branch(ctx context.Context, i pando.InstanceID) (*state.Branch, error) {
	if _, err := s.a.crews.runner(i); err != nil {
		return nil, err
	}
	return s.a.branches.Of(ctx, i)
}

// StateGet implements pando.Self.
func (s *selfAPI) StateGet(
	ctx context.Context, i pando.InstanceID, path string,
) (pando.StateValue, error) {
	b, err := s.branch(ctx, i)
	if err != nil {
		return pando.StateValue{}, err
	}
	return b.Get(path)
}

// StateList implements pando.Self.
func (s *selfAPI) StateList(
	ctx context.Context, i pando.InstanceID, prefix string,
) ([]pando.StateEntry, error) {
	b, err := s.branch(ctx, i)
	if err != nil {
		return nil, err
	}
	return b.List(prefix)
}

// StatePut implements pando.Self.
func (s *selfAPI) StatePut(
	ctx context.Context, i pando.InstanceID, path string, value []byte,
) error {
	b, err := s.branch(ctx, i)
	if err = errors.Join(err, s.a.mayWrite()); err != nil {
		return err
	}
	return b.Put(path, value)
}

// StatePatch implements pando.Self.
func (s *selfAPI) StatePatch(
	ctx context.Context, i pando.InstanceID, path string, delta []byte,
) error {
	b, err := s.branch(ctx, i)
	if err = errors.Join(err, s.a.mayWrite()); err != nil {
		return err
	}
	return b.Patch(path, delta)
}

// StateDelete implements pando.Self.
func (s *selfAPI) StateDelete(ctx context.Context, i pando.InstanceID, path string) error {
	b, err := s.branch(ctx, i)
	if err != nil {
		return err
	}
	return b.Delete(path)
}

// StateCommit implements pando.Self.
func (s *selfAPI) StateCommit(
	ctx context.Context, i pando.InstanceID, c pando.StateChange,
) (pando.ObjectID, error) {
	r, err := s.a.crews.runner(i)
	if err != nil {
		return pando.ObjectID{}, err
	}
	return s.a.branches.Commit(ctx, r.Service, i, c)
}

// StatePull implements pando.Self.
func (s *selfAPI) StatePull(
	ctx context.Context, i pando.InstanceID,
) (pando.MergeResult, error) {
	r, err := s.a.crews.runner(i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	return s.a.branches.Pull(ctx, r.Service, i)
}

// StatePush implements pando.Self.
func (s *selfAPI) StatePush(
	ctx context.Context, i pando.InstanceID,
) (pando.MergeResult, error) {
	r, err := s.a.crews.runner(i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	b, err := s.a.branches.Of(ctx, i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	if _, err := b.Commit(ctx, "pushed by "+string(i), s.a.Clock.Now()); err != nil {
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
