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

// foresee says which new instance an ask will lead to, if it is granted: one of this host that no reserve is there for and that
// no other start can take the place of. Control decides; it takes the name that is proposed if nothing stands against it. The
// caller holds the lock.
func (a *Agent) foresee(i pando.Intent) (pando.SandboxSpec, bool) {
	svc, now := a.world.Services[i.Service].V, a.Clock.Now()
	at, refused := a.refused[i.Service]
	if a.Control == nil || svc.Home != a.Host.Name || svc.Removing || svc.Target != svc.Current || refused && now.Sub(at) < vainWait {
		return pando.SandboxSpec{}, false
	}
	all := a.world.Of(i.Service)
	for _, o := range all {
		if o.Phase == pando.PhaseWarm || o.Phase == pando.PhasePlaced || o.Phase == pando.PhaseStarting {
			return pando.SandboxSpec{}, false
		}
	}
	spec, ok := a.world.SpecOf(i.Service, svc.Current)
	budget := scale.Budget{Scale: spec.Scale, Pin: svc.Pin, Instances: all}
	if !ok || scale.Replicate(budget, i.By, now).State != pando.IntentGranted {
		return pando.SandboxSpec{}, false
	}
	return pando.SandboxSpec{
		Instance: pando.Instance{ID: a.IDs.Instance(i.Service.Name), Service: i.Service, Host: a.Host.Name, Revision: svc.Current, Role: pando.RoleReplica},
		Spec:     spec, VIP4: svc.VIP4, VIP6: svc.VIP6,
	}, true
}

// prepare does as much of a start as leaves no trace, beside the write that makes the ask and its placement durable: the program
// is loaded, and runs its first instruction once this host knows of the placement. What is returned is called with what has
// become of the ask known, and gives up what was prepared for nothing.
func (a *Agent) prepare(s pando.SandboxSpec) (settle func()) {
	done := make(chan struct{})
	a.spawn(func(ctx context.Context) {
		defer close(done)
		if err := a.Sandboxes.Prepare(ctx, s); err != nil {
			a.Log.Debug("a start is not prepared", "instance", s.Instance.ID, "error", err)
			return
		}
		pando.Failpoint("replicate prepared")
	})
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if _, granted := a.world.Instances[s.Instance.ID]; granted {
			return
		}
		a.refused[s.Instance.Service] = a.Clock.Now()
		a.spawn(func(context.Context) {
			<-done
			a.Sandboxes.Discard(s.Instance.ID)
		})
	}
}
