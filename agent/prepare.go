package agent

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

// preparer does the work of likely grants ahead of the answers.
type preparer struct {
	a    *Agent
	mu   sync.Mutex
	vain map[pando.ServiceKey]time.Time // when a preparation was last discarded unused
}

func newPreparer(a *Agent) *preparer {
	return &preparer{a: a, vain: map[pando.ServiceKey]time.Time{}}
}

// wasVain notes that a preparation of a service was discarded unused.
func (p *preparer) wasVain(s pando.ServiceKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.a.Clock.Now()
	maps.DeleteFunc(p.vain, func(_ pando.ServiceKey, at time.Time) bool {
		return now.Sub(at) >= vainWait
	})
	p.vain[s] = now
}

// isVain reports whether an unused preparation of a service was discarded within vainWait.
func (p *preparer) isVain(s pando.ServiceKey, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	vain, ok := p.vain[s]
	return ok && now.Sub(vain) < vainWait
}

// prepare returns the work that a likely grant needs: waking an instance in reserve, or loading a
// new program if none is in reserve. It predicts control's decision from the records of this host.
// The intent proposes the name of a new instance.
func (p *preparer) prepare(i *pando.Intent) preparation {
	a := p.a
	a.records.Lock()
	defer a.records.Unlock()
	svc, now := a.records.World.Services[i.Service].V, a.Clock.Now()
	home := svc.Home == a.Host.Name && !svc.Removing && svc.Target == svc.Current
	if a.Control == nil || !home || p.isVain(i.Service, now) {
		return nothing
	}
	all := a.records.World.Of(i.Service)
	spec, ok := a.records.World.SpecOf(i.Service, svc.Current)
	budget := scale.Budget{Scale: spec.Scale, Pin: svc.Pin, Count: scale.CountOf(all)}
	// Control chooses the volumes of an instance, and gives it its secrets. A config may have those.
	// An instance that continues a seed starts no program, and a runtime of the host loads none.
	if !ok || spec.Ordinals() || spec.Seeded() || spec.Runtime != "" ||
		len(spec.StoredSecrets)+len(spec.Configs)+len(spec.Grants) > 0 ||
		scale.Replicate(budget, i.By, now).State != pando.IntentGranted {
		return nothing
	}
	for _, o := range all {
		r := a.crews.runners[o.ID]
		if o.Phase == pando.PhaseWarm && o.Revision == svc.Current && r != nil {
			return p.call(r)
		}
		switch o.Phase {
		case pando.PhaseWarm, pando.PhasePlaced, pando.PhaseStarting:
			return nothing // the ask may get this one soon
		}
	}
	i.Instance = a.IDs.Instance(i.Service.Name)
	return p.load(pando.SandboxSpec{
		Instance: pando.Instance{
			ID: i.Instance, Service: i.Service, Host: a.Host.Name, Revision: svc.Current,
			Role: budget.Count.NextRole(),
		},
		Spec: spec, VIP4: svc.VIP4, VIP6: svc.VIP6,
	})
}

// call wakes an instance in reserve. It takes no flows before it is claimed. An unclaimed one
// sleeps again.
func (p *preparer) call(r *runner.Runner) preparation {
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
				p.wasVain(r.Service)
			}
			r.ExpectAsk(-1)
		},
	}
}

// load does the part of a start that leaves no trace. It loads the program, which runs its first
// instruction after this host receives the placement.
func (p *preparer) load(s pando.SandboxSpec) preparation {
	a, id := p.a, s.Instance.ID
	var done chan struct{} // nil: not begun
	granted := false       // guarded by the agent's lock
	return preparation{
		begin: func() {
			done = make(chan struct{})
			a.spawn(func(ctx context.Context) {
				defer close(done)
				if err := a.supplier.Sandboxes.Prepare(ctx, s); err != nil {
					a.Log.Debug("a start is not prepared", "instance", id, "error", err)
					return
				}
				failpoint.Hit("replicate prepared")
				a.records.Lock()
				r := a.crews.runners[id]
				late := r != nil && r.Shown.Begun || r == nil && granted
				a.records.Unlock()
				if late { // no start will take this preparation
					a.supplier.Sandboxes.Discard(id)
				}
			})
		},
		settle: func() {
			a.records.Lock()
			_, granted = a.records.World.Instances[id]
			unused := !granted && done != nil
			a.records.Unlock()
			if !unused {
				return
			}
			p.wasVain(s.Instance.Service)
			a.spawn(func(context.Context) {
				<-done
				a.supplier.Sandboxes.Discard(id)
			})
		},
	}
}
