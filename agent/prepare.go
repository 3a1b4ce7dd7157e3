package agent

import (
	"context"
	"time"

	"pando.run/pando"
	"pando.run/pando/failpoint"
	"pando.run/pando/scale"
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

// prepare returns the work that a likely grant needs: waking an instance in reserve, or loading a
// new program if none is in reserve. It predicts control's decision from the records of this host.
// The intent proposes the name of a new instance. The caller holds the lock, but not during begin
// and settle.
func (a *Agent) prepare(i *pando.Intent) preparation {
	svc, now := a.world.Services[i.Service].V, a.Clock.Now()
	vain, ok := a.vain[i.Service]
	if a.Control == nil || svc.Home != a.Host.Name || svc.Removing || svc.Target != svc.Current || ok && now.Sub(vain) < vainWait {
		return nothing
	}
	all := a.world.Of(i.Service)
	spec, ok := a.world.SpecOf(i.Service, svc.Current)
	budget := scale.Budget{Scale: spec.Scale, Pin: svc.Pin, Count: scale.CountOf(all)}
	if !ok || scale.Replicate(budget, i.By, now).State != pando.IntentGranted {
		return nothing
	}
	for _, o := range all {
		if r := a.runners[o.ID]; o.Phase == pando.PhaseWarm && o.Revision == svc.Current && r != nil {
			return a.call(r)
		}
		if o.Phase == pando.PhaseWarm || o.Phase == pando.PhasePlaced || o.Phase == pando.PhaseStarting {
			return nothing // the ask may get this one soon
		}
	}
	i.Instance = a.IDs.Instance(i.Service.Name)
	return a.load(pando.SandboxSpec{
		Instance: pando.Instance{ID: i.Instance, Service: i.Service, Host: a.Host.Name, Revision: svc.Current, Role: pando.RoleReplica},
		Spec:     spec, VIP4: svc.VIP4, VIP6: svc.VIP6,
	})
}

// call wakes an instance in reserve. It takes no flows before it is claimed. An unclaimed one
// sleeps again.
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

// doze pauses an instance in reserve unless an ask on its way may claim it.
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
	failpoint.Hit("replicate prepared")
	return 0
}

// load does the part of a start that leaves no trace. It loads the program, which runs its first
// instruction after this host receives the placement.
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
				failpoint.Hit("replicate prepared")
				a.mu.Lock()
				defer a.mu.Unlock()
				if r := a.runners[s.Instance.ID]; r != nil && r.begun || r == nil && granted {
					a.Sandboxes.Discard(s.Instance.ID) // too late: no start will take this preparation
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
