package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/scale"
)

// scaleInterval is how often the built-in scaler looks at the steering counters.
const scaleInterval = 200 * time.Millisecond

// scaler asks on behalf of programs that know nothing of Pando. It is a client like any other: its asks are intents, and
// the same budgets answer them.
type scaler struct {
	c        *Control
	policies map[pando.ServiceKey]*scale.Policy
	last     time.Time
}

func newScaler(c *Control) *scaler {
	return &scaler{c: c, policies: map[pando.ServiceKey]*scale.Policy{}}
}

// next is how long it is until the next sample.
func (s *scaler) next() time.Duration {
	return max(time.Millisecond, scaleInterval-s.c.Clock.Now().Sub(s.last))
}

// step samples the counters of every host once an interval and writes what the policies ask for.
func (s *scaler) step(ctx context.Context, fence pando.Fence) {
	now := s.c.Clock.Now()
	if now.Sub(s.last) < scaleInterval {
		return
	}
	s.last = now
	wanted := s.wanted()
	if len(wanted) == 0 {
		return
	}
	counters := s.c.everyCounter(ctx)
	for _, key := range slices.SortedFunc(maps.Keys(wanted), pando.ServiceKey.Compare) {
		spec := wanted[key]
		p := s.policies[key]
		if p == nil {
			p = &scale.Policy{}
			s.policies[key] = p
		}
		s.c.mu.Lock()
		instances := s.c.world.Of(key)
		s.c.mu.Unlock()
		wish := p.Step(spec.Scale, instances, sample(counters, key, spec.Scale.By, now))
		if wish.Verb != "" {
			s.ask(ctx, fence, key, wish, now)
		}
	}
}

// wanted are the services that want the built-in scaler and are not pinned.
func (s *scaler) wanted() map[pando.ServiceKey]pando.Spec {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	out := map[pando.ServiceKey]pando.Spec{}
	for key, v := range s.c.world.Services {
		spec, ok := s.c.world.SpecOf(key, v.V.Target)
		if ok && spec.Scale.By != pando.ByNothing && !v.V.Removing && !v.V.Pin.Holds(s.c.Clock.Now()) {
			out[key] = spec
		}
	}
	for key := range s.policies {
		if _, ok := out[key]; !ok {
			delete(s.policies, key)
		}
	}
	return out
}

func sample(all []pando.EndpointCounters, key pando.ServiceKey, by pando.Metric, now time.Time) scale.Sample {
	out := scale.Sample{At: now, Total: map[pando.InstanceID]float64{}}
	for _, e := range all {
		if e.Service != key {
			continue
		}
		if by == pando.ByPackets {
			out.Total[e.Instance] += float64(e.Packets)
		} else {
			out.Total[e.Instance] += float64(e.Flows)
		}
	}
	return out
}

func (s *scaler) ask(ctx context.Context, fence pando.Fence, key pando.ServiceKey, w scale.Wish, now time.Time) {
	i := pando.Intent{
		ID: pando.IntentID(s.c.IDs.Sequential(now)), Service: key, Verb: w.Verb, Instance: w.Instance, Inputs: w.Inputs,
		By: pando.Asker{Kind: pando.AskerScaler},
	}.Become(pando.IntentAsked, now, w.Reason)
	if err := s.c.commit(ctx, fence, pando.Txn{Put: []pando.Stored{i}}); err != nil {
		s.c.Log.Warn("the scaler's ask could not be written", "service", key, "error", err)
	}
}

// everyCounter collects the counters of all hosts; a host that does not answer is left out this time.
func (c *Control) everyCounter(ctx context.Context) []pando.EndpointCounters {
	ctx, cancel := context.WithTimeout(ctx, scaleInterval)
	defer cancel()
	hosts := c.hosts()
	each := make([][]pando.EndpointCounters, len(hosts))
	var wg sync.WaitGroup
	for n, h := range hosts {
		wg.Go(func() { // one that is cut off must not keep the others waiting
			var err error
			if each[n], err = c.Peers.Counters(ctx, h); err != nil {
				c.Log.Warn("no counters", "host", h.Name, "error", err)
			}
		})
	}
	wg.Wait()
	return slices.Concat(each...)
}
