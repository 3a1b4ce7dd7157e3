package self

import (
	"context"
	"errors"
	"time"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

const (
	wakeRest     = time.Second     // after a refused ask, until the next
	wakeAnswered = 5 * time.Second // at most, until control has answered
)

// wakeBound is the services that are woken at a time. The others wait for the retry of a client.
var wakeBound = share.Bound{Total: 256, Each: 64, Reserve: 32}

// byTraffic is the reason of an ask by traffic.
const byTraffic = "a packet came while no instance ran"

// WakeServices asks for the first instance of each service that sleeps and gets a packet. One ask
// of a service is on its way at a time, so a flood of packets makes no flood of asks.
func (s *API) WakeServices(ctx context.Context) {
	awake := make(chan pando.ServiceKey)
	pending := map[pando.ServiceKey]*share.Hold[pando.Tenant]{}
	places := share.New[pando.Tenant](wakeBound)
	for {
		select {
		case <-ctx.Done():
			return
		case of := <-awake:
			pending[of].Close()
			delete(pending, of)
		case of := <-s.Steering.Knocks():
			if pending[of] != nil {
				continue
			}
			place, err := wakePlace(places, of.Tenant)
			if err != nil {
				continue
			}
			pending[of] = place
			s.Spawn(func(ctx context.Context) {
				if err := s.wake(ctx, of); err != nil && ctx.Err() == nil {
					s.Log.Warn("a packet starts no instance", "service", of, "error", err)
					_ = pando.Sleep(ctx, s.Clock, wakeRest)
				}
				select {
				case awake <- of:
				case <-ctx.Done():
				}
			})
		}
	}
}

// wakePlace takes a place for a service of a tenant. Operators have the tenant default.
func wakePlace(
	places *share.Pool[pando.Tenant], t pando.Tenant,
) (*share.Hold[pando.Tenant], error) {
	if t == pando.DefaultTenant {
		return places.TakeAsOperator(1)
	}
	return places.Take(t, 1)
}

// wake asks control for the first instance of a service, as any asker does.
func (s *API) wake(ctx context.Context, of pando.ServiceKey) error {
	ctx, cancel := context.WithTimeout(ctx, wakeAnswered)
	defer cancel()
	now := s.Clock.Now()
	intent := pando.Intent{
		ID: pando.IntentID(s.IDs.Sequential(now)), Service: of, Verb: pando.VerbReplicate,
		Host: s.Host,
		By:   pando.Asker{Kind: pando.AskerTraffic, Name: string(s.Host)},
	}.Become(pando.IntentAsked, now, byTraffic)
	ahead := s.prepare(&intent)
	defer ahead.settle()
	if err := s.submit(ctx, intent, ahead.begin); err != nil {
		return err
	}
	defer s.dismiss(&intent)
	intent, err := s.awaitIntent(ctx, intent, answered)
	if err == nil && intent.State == pando.IntentRefused {
		err = errors.New(intent.Reason)
	}
	return err
}
