package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// scaleInterval is how often the built-in scaler reads the steering counters.
const scaleInterval = 200 * time.Millisecond

// scaleRest is how often the scaler looks for services to scale while there is none. A change of
// the store wakes it earlier. The end of a pin does not.
const scaleRest = 2 * time.Second

// scaler asks on behalf of programs that do not use the API of Pando. It is a client like any
// other: its asks are intents, and the same budgets answer them. It reads counters outside the
// leader's loop, so that a silent host never delays the loop.
type scaler struct {
	c        *Control
	policies map[pando.ServiceKey]*scale.Policy
	last     time.Time
	resting  bool // no service is to be scaled
	reading  bool // a reading is in progress; one at a time
	read     chan counted
	silent   map[pando.HostName]bool // the hosts that did not answer last time
	readers  sync.WaitGroup
	gates    *gates
}

func newScaler(c *Control) *scaler {
	return &scaler{
		c: c, policies: map[pando.ServiceKey]*scale.Policy{},
		read: make(chan counted, 1), silent: map[pando.HostName]bool{},
		gates: &gates{c: c, known: map[gate]*lifecycle.Comparison{}},
	}
}

// next returns the time until the next sample. The end of a reading wakes the loop by itself.
func (s *scaler) next() time.Duration {
	if s.reading {
		return scaleInterval
	}
	wait := scaleInterval
	if s.resting {
		wait = scaleRest
	}
	return max(time.Millisecond, wait-s.c.mirror.Clock.Now().Sub(s.last))
}

// step judges the counters of a finished reading and starts one reading per interval.
func (s *scaler) step(ctx context.Context, fence pando.Fence) {
	select {
	case v := <-s.read:
		s.reading = false
		s.tell(v.failed)
		s.judge(ctx, fence, v)
	default:
	}
	now := s.c.mirror.Clock.Now()
	if s.reading || now.Sub(s.last) < scaleInterval {
		s.resting = false // the store may have changed
		return
	}
	s.last = now
	if s.resting = len(s.wanted())+len(s.gates.wanted()) == 0; s.resting {
		return
	}
	s.reading = true
	s.readers.Go(func() {
		s.read <- s.c.counters.read(ctx)
		s.c.mirror.Wake()
	})
}

// end waits for the reading in progress, which ends with the context of its step.
func (s *scaler) end() { s.readers.Wait() }

// tell logs the hosts that stopped answering and those that answer again.
func (s *scaler) tell(failed map[pando.HostName]error) {
	for h, err := range failed {
		if !s.silent[h] {
			s.c.mirror.Log.Warn("a host gives no counters; its instances count as they last did", "host", h,
				"error", err)
		}
	}
	for h := range s.silent {
		if failed[h] == nil {
			s.c.mirror.Log.Info("a host gives counters again", "host", h)
		}
	}
	clear(s.silent)
	for h := range failed {
		s.silent[h] = true
	}
}

// judge writes the asks of the policies.
func (s *scaler) judge(ctx context.Context, fence pando.Fence, v counted) {
	wanted := s.wanted()
	of := byService(v.all)
	s.gates.judge(ctx, fence, v.at, of)
	for _, key := range slices.SortedFunc(maps.Keys(wanted), pando.ServiceKey.Compare) {
		spec := wanted[key]
		p := s.policies[key]
		if p == nil {
			p = &scale.Policy{}
			s.policies[key] = p
		}
		s.c.mirror.Mu.Lock()
		instances := decide.WithLocalTimes(s.c.mirror.World, decide.OnLiveHosts(s.c.mirror.World, s.c.mirror.World.Of(key)))
		s.c.mirror.Mu.Unlock()
		wish := p.Step(spec.Scale, instances, sample(of[key], spec.Scale.By, v.at))
		if wish.Verb != "" {
			s.ask(ctx, fence, key, wish, s.c.mirror.Clock.Now())
		}
	}
}

// wanted returns the services that use the built-in scaler and are not pinned.
func (s *scaler) wanted() map[pando.ServiceKey]pando.Spec {
	s.c.mirror.Mu.RLock()
	defer s.c.mirror.Mu.RUnlock()
	out := map[pando.ServiceKey]pando.Spec{}
	for key, v := range s.c.mirror.World.Services {
		spec, ok := s.c.mirror.World.SpecOf(key, v.V.Target)
		scales := spec.Scale.By != pando.ByNothing || spec.Scale.FromZero()
		if ok && scales && !v.V.Removing && !v.V.Pin.Holds(s.c.mirror.Clock.Now()) {
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

// byService groups the counters of a reading once, so that no service looks at those of others.
func byService(all []pando.EndpointCounters) map[pando.ServiceKey][]pando.EndpointCounters {
	out := map[pando.ServiceKey][]pando.EndpointCounters{}
	for _, e := range all {
		out[e.Service] = append(out[e.Service], e)
	}
	return out
}

func sample(of []pando.EndpointCounters, by pando.Metric, now time.Time) scale.Sample {
	out := scale.Sample{At: now, Total: map[pando.InstanceID]float64{},
		Score: map[pando.InstanceID]float64{}, Gauge: map[pando.InstanceID]float64{},
		Packets: map[pando.InstanceID]float64{}, Open: map[pando.InstanceID]float64{}}
	for _, e := range of {
		if e.Score != nil {
			out.Score[e.Instance] = e.Score.Value
		}
		if e.Meter != nil {
			if v, ok := e.Meter.Metrics[string(by)]; ok {
				out.Gauge[e.Instance] = v
			}
		}
		out.Packets[e.Instance] += float64(e.Packets)
		out.Open[e.Instance] += float64(e.Open)
		if by == pando.ByPackets {
			out.Total[e.Instance] += float64(e.Packets)
		} else {
			out.Total[e.Instance] += float64(e.Flows)
		}
	}
	return out
}

func (s *scaler) ask(
	ctx context.Context, fence pando.Fence, key pando.ServiceKey, w scale.Wish, now time.Time,
) {
	i := pando.Intent{
		ID: pando.IntentID(s.c.mirror.IDs.Sequential(now)), Service: key, Verb: w.Verb, Instance: w.Instance,
		Inputs: w.Inputs,
		By:     pando.Asker{Kind: pando.AskerScaler},
	}.Become(pando.IntentAsked, now, w.Reason)
	if err := s.c.mirror.Commit(ctx, fence, pando.Txn{Put: []pando.Stored{i}}); err != nil {
		s.c.mirror.Log.Warn("the scaler's ask could not be written", "service", key, "error", err)
	}
}
