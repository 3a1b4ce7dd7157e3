package agent

import (
	"context"
	"errors"
	"time"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

const (
	knockWait     = time.Second     // after a refused ask, until the next
	knockAnswered = 5 * time.Second // at most, until control has answered
)

// knockBound is the services that are woken at a time. The others wait for the retry of a client.
var knockBound = share.Bound{Total: 256, Each: 64, Reserve: 32}

// knocking is the reason of an ask by traffic.
const knocking = "a packet came while no instance ran"

// knocks starts the first instances of services that sleep.
type knocks struct{ agent *Agent }

// run asks for the first instance of each service that sleeps and gets a packet. One ask
// of a service is on its way at a time, so a flood of packets makes no flood of asks.
func (a knocks) run(ctx context.Context) {
	awake := make(chan pando.ServiceKey)
	pending := map[pando.ServiceKey]*share.Hold[pando.Tenant]{}
	places := share.New[pando.Tenant](knockBound)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-awake:
			pending[s].Close()
			delete(pending, s)
		case s := <-a.agent.Steering.Knocks():
			if pending[s] != nil {
				continue
			}
			place, err := knockPlace(places, s.Tenant)
			if err != nil {
				continue
			}
			pending[s] = place
			a.agent.spawn(func(ctx context.Context) {
				if err := a.wake(ctx, s); err != nil && ctx.Err() == nil {
					a.agent.Log.Warn("a packet starts no instance", "service", s, "error", err)
					_ = pando.Sleep(ctx, a.agent.Clock, knockWait)
				}
				select {
				case awake <- s:
				case <-ctx.Done():
				}
			})
		}
	}
}

// knockPlace takes a place for a service of a tenant. Operators have the tenant default.
func knockPlace(
	places *share.Pool[pando.Tenant], t pando.Tenant,
) (*share.Hold[pando.Tenant], error) {
	if t == pando.DefaultTenant {
		return places.TakeAsOperator(1)
	}
	return places.Take(t, 1)
}

// wake asks control for the first instance of a service, as any asker does.
func (a knocks) wake(ctx context.Context, s pando.ServiceKey) error {
	ctx, cancel := context.WithTimeout(ctx, knockAnswered)
	defer cancel()
	now := a.agent.Clock.Now()
	intent := pando.Intent{
		ID: pando.IntentID(a.agent.IDs.Sequential(now)), Service: s, Verb: pando.VerbReplicate,
		Host: a.agent.Host.Name,
		By:   pando.Asker{Kind: pando.AskerTraffic, Name: string(a.agent.Host.Name)},
	}.Become(pando.IntentAsked, now, knocking)
	ahead := a.agent.preparer.prepare(&intent)
	defer ahead.settle()
	if err := a.agent.self.submit(ctx, intent, ahead.begin); err != nil {
		return err
	}
	defer a.agent.self.dismiss(&intent)
	intent, err := a.agent.self.awaitIntent(ctx, intent, answered)
	if err == nil && intent.State == pando.IntentRefused {
		err = errors.New(intent.Reason)
	}
	return err
}
