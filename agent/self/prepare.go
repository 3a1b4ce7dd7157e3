package self

import (
	"context"
	"maps"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/scale"
	"pando.run/pando/test/failpoint"
)

// vainWait is how long no starts are prepared for a service after an unused preparation. It equals
// the window of the grant rate, so that an instance that asks continuously causes no more work than
// the answers.
const vainWait = time.Second

// preparation is the work for an ask that can run while the ask and its placement become durable.
type preparation struct {
	begin  func() // called once the ask is on its way, so that it does not delay the earlier steps
	settle func() // called once the result of the ask is stored; undoes unused work
}

var nothing = preparation{begin: func() {}, settle: func() {}}

// vainStarts are the services whose preparations were discarded unused.
type vainStarts struct {
	mu   sync.Mutex
	last map[pando.ServiceKey]time.Time
}

// note notes that a preparation of a service was discarded unused.
func (v *vainStarts) note(s pando.ServiceKey, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		v.last = map[pando.ServiceKey]time.Time{}
	}
	maps.DeleteFunc(v.last, func(_ pando.ServiceKey, at time.Time) bool {
		return now.Sub(at) >= vainWait
	})
	v.last[s] = now
}

// isRecent reports whether an unused preparation of a service was discarded within vainWait.
func (v *vainStarts) isRecent(s pando.ServiceKey, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	at, ok := v.last[s]
	return ok && now.Sub(at) < vainWait
}

// prepare returns the work that a likely grant needs: waking an instance in reserve, or loading a
// new program if none is in reserve. It predicts control's decision from the records of this host.
// The intent proposes the name of a new instance.
func (s *API) prepare(i *pando.Intent) preparation {
	s.Records.Lock()
	defer s.Records.Unlock()
	svc, now := s.Records.World.Services[i.Service].V, s.Clock.Now()
	home := svc.Home == s.Host && !svc.Removing && svc.Target == svc.Current
	if s.Control == nil || !home || s.vain.isRecent(i.Service, now) {
		return nothing
	}
	all := s.Records.World.Of(i.Service)
	spec, ok := s.Records.World.SpecOf(i.Service, svc.Current)
	budget := scale.Budget{Scale: spec.Scale, Pin: svc.Pin, Count: scale.CountOf(all)}
	// Control chooses the volumes of an instance, and gives it its secrets. A config may have those.
	// An instance that continues a seed starts no program, and a runtime of the host loads none.
	if !ok || spec.Ordinals() || spec.Seeded() || spec.Runtime != "" ||
		len(spec.StoredSecrets)+len(spec.Configs)+len(spec.Grants) > 0 ||
		scale.Replicate(budget, i.By, now).State != pando.IntentGranted {
		return nothing
	}
	for _, o := range all {
		r := s.Agent.RunnerIn(s.Records.World, o.ID)
		if o.Phase == pando.PhaseWarm && o.Revision == svc.Current && r != nil {
			return s.callReserve(r)
		}
		switch o.Phase {
		case pando.PhaseWarm, pando.PhasePlaced, pando.PhaseStarting:
			return nothing // the ask may get this one soon
		}
	}
	i.Instance = s.IDs.Instance(i.Service.Name)
	return s.loadProgram(pando.SandboxSpec{
		Instance: pando.Instance{
			ID: i.Instance, Service: i.Service, Host: s.Host, Revision: svc.Current,
			Role: budget.Count.NextRole(),
		},
		Spec: spec, VIP4: svc.VIP4, VIP6: svc.VIP6,
	})
}

// callReserve wakes an instance in reserve. It takes no flows before it is claimed. An unclaimed
// one sleeps again.
func (s *API) callReserve(r *runner.Runner) preparation {
	begun := false
	return preparation{
		begin: func() {
			begun = true
			r.ExpectAsk(+1)
		},
		settle: func() {
			if !begun {
				return
			}
			if r.Status().Instance.Phase == pando.PhaseWarm {
				s.vain.note(r.Service, s.Clock.Now())
			}
			r.ExpectAsk(-1)
		},
	}
}

// loadProgram does the part of a start that leaves no trace. It loads the program, which runs its
// first instruction after this host receives the placement.
func (s *API) loadProgram(box pando.SandboxSpec) preparation {
	id := box.Instance.ID
	var done chan struct{} // nil: not begun
	granted := false       // guarded by the agent's lock
	return preparation{
		begin: func() {
			done = make(chan struct{})
			s.Spawn(func(ctx context.Context) {
				defer close(done)
				if err := s.Sandboxes.Prepare(ctx, box); err != nil {
					s.Log.Debug("a start is not prepared", "instance", id, "error", err)
					return
				}
				failpoint.Hit("replicate prepared")
				s.Records.Lock()
				r := s.Agent.RunnerIn(s.Records.World, id)
				late := r != nil && r.Shown.Begun || r == nil && granted
				s.Records.Unlock()
				if late { // no start will take this preparation
					s.Sandboxes.Discard(id)
				}
			})
		},
		settle: func() {
			s.Records.Lock()
			_, granted = s.Records.World.Instances[id]
			unused := !granted && done != nil
			s.Records.Unlock()
			if !unused {
				return
			}
			s.vain.note(box.Instance.Service, s.Clock.Now())
			s.Spawn(func(context.Context) {
				<-done
				s.Sandboxes.Discard(id)
			})
		},
	}
}
