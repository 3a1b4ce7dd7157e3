package control

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
)

// counters reads the steering counters of all hosts.
type counters struct {
	mirror  *mirror.Mirror
	peers   pando.Peers
	reading sync.Mutex // guards the two below, also while they are read from the hosts
	last    map[pando.ServiceKey][]pando.EndpointCounters
	lastAt  time.Time

	silences sync.Mutex
	silent   map[pando.HostName]silence
}

// silence is a run of readings that a host did not answer.
type silence struct {
	times int
	until time.Time // it is not asked before
	err   error
}

// silenceMax bounds the time for which a silent host is not asked again.
const silenceMax = 5 * time.Second

// errSilent returns why a host is not asked now, or nil. A host may miss one reading. After the
// second it is asked less and less often, so that it delays few readings of the others.
func (c *counters) errSilent(h pando.HostName) error {
	c.silences.Lock()
	defer c.silences.Unlock()
	if s := c.silent[h]; c.mirror.Clock.Now().Before(s.until) {
		return s.err
	}
	return nil
}

// note stores the result of a request to a host.
func (c *counters) note(h pando.HostName, err error) {
	c.silences.Lock()
	defer c.silences.Unlock()
	if err == nil {
		delete(c.silent, h)
		return
	}
	s := c.silent[h]
	s.err = err
	if s.times++; s.times > 1 {
		wait := scaleInterval << min(s.times-2, 8)
		s.until = c.mirror.Clock.Now().Add(min(wait, silenceMax))
	}
	if c.silent == nil {
		c.silent = map[pando.HostName]silence{}
	}
	c.silent[h] = s
}

// counted holds the counters of all hosts at one moment.
type counted struct {
	at     time.Time
	all    []pando.EndpointCounters
	failed map[pando.HostName]error
}

// read collects the counters of all hosts. It lists each host that does not answer in time with
// its error.
func (c *counters) read(ctx context.Context) counted {
	ctx, cancel := context.WithTimeout(ctx, scaleInterval)
	defer cancel()
	out := counted{at: c.mirror.Clock.Now(), failed: map[pando.HostName]error{}}
	hosts := c.mirror.Hosts()
	each, errs := make([][]pando.EndpointCounters, len(hosts)), make([]error, len(hosts))
	var wg sync.WaitGroup
	for n, h := range hosts {
		if errs[n] = c.errSilent(h.Name); errs[n] != nil {
			continue
		}
		wg.Go(func() { // a host that is cut off must not delay the others
			each[n], errs[n] = c.peers.Counters(ctx, h)
			for i := range each[n] {
				each[n][i].Host = h.Name
			}
			// A caller that left proves nothing about the host.
			if errs[n] == nil || !errors.Is(ctx.Err(), context.Canceled) {
				c.note(h.Name, errs[n])
			}
		})
	}
	wg.Wait()
	for n, h := range hosts {
		if errs[n] != nil {
			out.failed[h.Name] = errs[n]
		}
	}
	out.all = slices.Concat(each...)
	return out
}

// recent returns the counters of all hosts, at most scaleInterval old. A caller that asks for one
// service after another thus reads each host once.
func (c *counters) recent(
	ctx context.Context,
) map[pando.ServiceKey][]pando.EndpointCounters {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.mirror.Clock.Now().Sub(c.lastAt) >= scaleInterval {
		v := c.read(ctx)
		if ctx.Err() != nil {
			return byService(v.all) // incomplete: the caller left, and the next one reads again
		}
		c.last, c.lastAt = byService(v.all), c.mirror.Clock.Now()
	}
	return c.last
}
