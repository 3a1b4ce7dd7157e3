package control

import (
	"context"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
)

// counters reads the steering counters of all hosts.
type counters struct {
	*view
	reading sync.Mutex // guards the two below, also while they are read from the hosts
	last    []pando.EndpointCounters
	lastAt  time.Time
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
	out := counted{at: c.Clock.Now(), failed: map[pando.HostName]error{}}
	hosts := c.hosts()
	each, errs := make([][]pando.EndpointCounters, len(hosts)), make([]error, len(hosts))
	var wg sync.WaitGroup
	for n, h := range hosts {
		wg.Go(func() { // a host that is cut off must not delay the others
			each[n], errs[n] = c.Peers.Counters(ctx, h)
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
func (c *counters) recent(ctx context.Context) []pando.EndpointCounters {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.Clock.Now().Sub(c.lastAt) >= scaleInterval {
		v := c.read(ctx)
		if ctx.Err() != nil {
			return v.all // incomplete: the caller went away, and the next one reads again
		}
		c.last, c.lastAt = v.all, c.Clock.Now()
	}
	return c.last
}
