package agent

import (
	"context"
	"time"

	"pando.run/pando"
	"pando.run/pando/scale"
)

// vainWait is how long nothing is prepared for the asks of a service after one of them was not granted what was prepared: as long
// as the rate of grants is counted, so that who asks all the time costs no more than an answer.
const vainWait = time.Second

// preparation is what can be done for an ask beside the write that makes it and its placement durable.
type preparation struct {
	begin  func() // once the ask is on its way: what has to be done until then is not kept waiting
	settle func() // once it is known what has become of the ask; takes back what was done for nothing
}

var nothing = preparation{begin: func() {}, settle: func() {}}

// prepare says what can be done for an ask: an instance in reserve is woken, or, where there is none, a start is prepared.
// Control decides; this is what it will do if nothing has changed. The intent proposes the name of a new instance. The caller
// holds the lock, and does not when it calls what is returned.
func (a *Agent) prepare(i *pando.Intent) preparation {
	svc, now := a.world.Services[i.Service].V, a.Clock.Now()
	vain, ok := a.vain[i.Service]
	if a.Control == nil || svc.Home != a.Host.Name || svc.Removing || svc.Target != svc.Current || ok && now.Sub(vain) < vainWait {
		return nothing
	}
	all := a.world.Of(i.Service)
	spec, ok := a.world.SpecOf(i.Service, svc.Current)
	budget := scale.Budget{Scale: spec.Scale, Pin: svc.Pin, Instances: all}
	if !ok || scale.Replicate(budget, i.By, now).State != pando.IntentGranted {
		return nothing
	}
	for _, o := range all {
		if r := a.runners[o.ID]; o.Phase == pando.PhaseWarm && o.Revision == svc.Current && r != nil {
			return a.call(r)
		}
		if o.Phase == pando.PhaseWarm || o.Phase == pando.PhasePlaced || o.Phase == pando.PhaseStarting {
			return nothing // it may be what the ask gets, in a while
		}
	}
	i.Instance = a.IDs.Instance(i.Service.Name)
	return a.load(pando.SandboxSpec{
		Instance: pando.Instance{ID: i.Instance, Service: i.Service, Host: a.Host.Name, Revision: svc.Current, Role: pando.RoleReplica},
		Spec:     spec, VIP4: svc.VIP4, VIP6: svc.VIP6,
	})
}

// call wakes an instance in reserve. It takes no flows before it is claimed, and if it is not it sleeps again.
func (a *Agent) call(r *runner) preparation {
	called := false
	return preparation{
		begin: func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			called = true
			r.called++
			r.kick()
		},
		settle: func() {
			if !called {
				return
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if r.called--; r.inst.Phase == pando.PhaseWarm {
				a.vain[r.service] = a.Clock.Now()
				r.kick()
			}
		},
	}
}

// doze lets an instance in reserve sleep, unless an ask on its way may claim it.
func (r *runner) doze(ctx context.Context, box pando.Sandbox) time.Duration {
	r.a.mu.Lock()
	called := r.called > 0
	r.a.mu.Unlock()
	if called == r.awake {
		return 0
	}
	change, what := box.Pause, "put the instance in reserve again"
	if called {
		change, what = box.Resume, "wake the instance for an ask"
	}
	if err := change(ctx); err != nil {
		r.fail(what+": "+err.Error(), nil)
		return time.Millisecond
	}
	r.awake = called
	pando.Failpoint("replicate prepared")
	return 0
}

// load does as much of a start as leaves no trace: the program is loaded, and runs its first instruction once this host knows of
// the placement.
func (a *Agent) load(s pando.SandboxSpec) preparation {
	var done chan struct{} // nil: not begun
	granted := false
	return preparation{
		begin: func() {
			done = make(chan struct{})
			a.spawn(func(ctx context.Context) {
				defer close(done)
				if err := a.Sandboxes.Prepare(ctx, s); err != nil {
					a.Log.Debug("a start is not prepared", "instance", s.Instance.ID, "error", err)
					return
				}
				pando.Failpoint("replicate prepared")
				a.mu.Lock()
				defer a.mu.Unlock()
				if r := a.runners[s.Instance.ID]; r != nil && r.begun || r == nil && granted {
					a.Sandboxes.Discard(s.Instance.ID) // the placement was here first: whatever the start did not take, nobody will
				}
			})
		},
		settle: func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if _, granted = a.world.Instances[s.Instance.ID]; granted || done == nil {
				return
			}
			a.vain[s.Instance.Service] = a.Clock.Now()
			a.spawn(func(context.Context) {
				<-done
				a.Sandboxes.Discard(s.Instance.ID)
			})
		},
	}
}
