package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
	"pando.run/pando/world"
)

const (
	// steeringWaitMin is how long a host may take to answer a caller that does not wait.
	steeringWaitMin = 300 * time.Millisecond
	// steeringAgain is the pause before a host is asked again that did not answer.
	steeringAgain = 100 * time.Millisecond
	// steeringPartly is the pause before a host is asked again that leaves out a part. A tunnel to a
	// new host may open in between.
	steeringPartly = time.Second
)

// confirmations asks the hosts whether they steer services by their newest endpoints. It keeps the
// answers, so a service costs one request per host and change.
type confirmations struct {
	mirror *mirror.Mirror
	peers  pando.Peers
	noting sync.Mutex
	known  map[pando.ServiceKey]*confirmation // noting guards it
}

// confirmation holds the hosts that steer a service by its endpoints at a revision.
type confirmation struct {
	at    pando.StoreRevision
	since time.Time // the first request
	// hosts has the revision of each host's record. A host that joins again may have lost its tables.
	hosts map[pando.HostName]pando.StoreRevision
}

// Steering implements pando.Operators.
func (c *confirmations) Steering(
	ctx context.Context, of []pando.ServiceKey, wait time.Duration,
) ([]pando.HostSteering, error) {
	if len(of) == 0 || wait < 0 || wait > pando.SteeringWaitMax {
		return nil, fmt.Errorf("%w: %d services, wait %s: want a service, and a wait of at most %s",
			pando.ErrInvalid, len(of), wait, pando.SteeringWaitMax)
	}
	within, cancel := context.WithTimeout(ctx, max(wait, steeringWaitMin))
	defer cancel()
	at, err := c.published(within, of)
	if at == nil || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	since := c.begin(at)
	hosts := c.leases()
	failed, partly := map[pando.HostName]error{}, map[pando.HostName]string{}
	if err == nil {
		failed, partly = c.confirm(within, hosts, at)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	out := []pando.HostSteering{}
	for _, h := range hosts {
		if _, err := c.mirror.Present(h.V.Name); err != nil {
			continue
		}
		part := partly[h.V.Name]
		one := pando.HostSteering{Host: h.V.Name, Confirmed: true, Partly: part != "", Reason: part}
		if err := errors.Join(err, failed[h.V.Name]); err != nil {
			waited := c.mirror.Clock.Now().Sub(since).Seconds()
			one = pando.HostSteering{Host: h.V.Name, WaitedSeconds: waited, Reason: err.Error()}
		}
		out = append(out, one)
	}
	return out, nil
}

// published waits until the endpoints of services show their newest instances. It returns the
// revisions of these endpoints, also beside the error that they are late.
func (c *confirmations) published(
	ctx context.Context, of []pando.ServiceKey,
) (map[pando.ServiceKey]pando.StoreRevision, error) {
	for {
		c.mirror.Mu.RLock()
		news := c.mirror.Changed
		at, late, err := c.endpoints(of)
		c.mirror.Mu.RUnlock()
		if err != nil || late == nil {
			return at, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return at, fmt.Errorf("%w: control has not published the endpoints of %s yet",
				pando.ErrNotReady, late)
		}
	}
}

// endpoints returns the revisions of the endpoints of services, and a service with late ones or
// nil. A service without a VIP has none. The caller holds the lock.
func (c *confirmations) endpoints(
	of []pando.ServiceKey,
) (at map[pando.ServiceKey]pando.StoreRevision, late *pando.ServiceKey, err error) {
	at = make(map[pando.ServiceKey]pando.StoreRevision, len(of))
	for _, s := range of {
		svc, ok := c.mirror.World.Services[s]
		if !ok {
			return nil, nil, fmt.Errorf("service %s: %w; `pando status` lists the services", s,
				pando.ErrNotFound)
		}
		if !svc.V.VIP4.IsValid() {
			continue
		}
		e := c.mirror.World.Endpoints[s]
		at[s] = e.Modified
		if e.V.Service.Current != svc.V.Current || !shows(e.V, c.mirror.World.Of(s)) {
			late = &s
		}
	}
	return at, late, nil
}

// shows reports whether endpoints send flows to exactly the instances that take them.
func shows(e pando.Endpoints, all []pando.Instance) bool {
	takers := map[pando.InstanceID]bool{}
	for _, t := range e.Seats {
		if t.Phase.TakesFlows() {
			takers[t.Instance] = true
		}
	}
	for _, i := range all {
		if i.Phase.TakesFlows() {
			if !takers[i.ID] {
				return false
			}
			delete(takers, i.ID)
		}
	}
	return len(takers) == 0
}

// leases returns the hosts with a lease, by name.
func (c *confirmations) leases() (out []world.Versioned[pando.Host]) {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(c.mirror.World.Hosts)) {
		out = append(out, c.mirror.World.Hosts[name])
	}
	return out
}

// begin forgets the answers about older endpoints. It returns the first request for one of these.
func (c *confirmations) begin(at map[pando.ServiceKey]pando.StoreRevision) (since time.Time) {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	c.noting.Lock()
	defer c.noting.Unlock()
	if len(c.known) > 2*len(c.mirror.World.Services) {
		maps.DeleteFunc(c.known, func(s pando.ServiceKey, _ *confirmation) bool {
			_, known := c.mirror.World.Services[s]
			return !known
		})
	}
	since = c.mirror.Clock.Now()
	for s, at := range at {
		k := c.known[s]
		if k == nil || k.at != at {
			k = &confirmation{at, c.mirror.Clock.Now(), map[pando.HostName]pando.StoreRevision{}}
			c.known[s] = k
		}
		if k.since.Before(since) {
			since = k.since
		}
	}
	return since
}

// confirm asks each host once, all at the same time, about the endpoints that it has not confirmed.
// It asks a host without an answer again, until ctx ends or the host loses its lease. It returns
// the hosts without a confirmation, and what the others leave out.
func (c *confirmations) confirm(
	ctx context.Context, hosts []world.Versioned[pando.Host],
	at map[pando.ServiceKey]pando.StoreRevision,
) (failed map[pando.HostName]error, partly map[pando.HostName]string) {
	failed, partly = map[pando.HostName]error{}, map[pando.HostName]string{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, h := range hosts {
		open, newest := c.unconfirmed(h, at)
		if len(open) == 0 {
			continue
		}
		asking.Go(func() {
			missing, err := c.ask(ctx, h, open, newest)
			if err == nil && missing == "" {
				c.note(h, open, at)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[h.V.Name] = err
			} else {
				partly[h.V.Name] = missing
			}
		})
	}
	asking.Wait()
	return failed, partly
}

// ask returns once a host steers services by their endpoints at a revision. A host that leaves out
// a part has until ctx ends to do it too.
func (c *confirmations) ask(
	ctx context.Context, h world.Versioned[pando.Host], of []pando.ServiceKey,
	at pando.StoreRevision,
) (missing string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		c.stays(ctx, h.V.Name)
	}()
	for {
		is, err := c.peers.Applied(ctx, h.V, of, at)
		pause := steeringAgain
		if err == nil {
			if missing = is; missing == "" {
				return "", nil
			}
			pause = steeringPartly
		} else if missing != "" {
			return missing, nil // it said so, and the time is over or the host is gone
		} else if ctx.Err() != nil {
			return "", fmt.Errorf("%w: it has not confirmed its steering", pando.ErrNotReady)
		}
		if pando.Sleep(ctx, c.mirror.Clock, pause) != nil {
			return missing, err
		}
	}
}

// stays returns when a host has lost its lease, or ctx ends.
func (c *confirmations) stays(ctx context.Context, h pando.HostName) {
	for ctx.Err() == nil {
		c.mirror.Mu.RLock()
		news := c.mirror.Changed
		c.mirror.Mu.RUnlock()
		if _, err := c.mirror.Present(h); err != nil {
			return
		}
		select {
		case <-news:
		case <-ctx.Done():
		}
	}
}

// unconfirmed returns the services without a confirmation of a host, with the newest revision of
// their endpoints.
func (c *confirmations) unconfirmed(
	h world.Versioned[pando.Host], at map[pando.ServiceKey]pando.StoreRevision,
) (open []pando.ServiceKey, newest pando.StoreRevision) {
	c.noting.Lock()
	defer c.noting.Unlock()
	for s, rev := range at {
		k := c.known[s]
		if k == nil || k.at != rev || k.hosts[h.V.Name] != h.Modified {
			open, newest = append(open, s), max(newest, rev)
		}
	}
	slices.SortFunc(open, pando.ServiceKey.Compare)
	return open, newest
}

// note keeps the confirmation of a host.
func (c *confirmations) note(
	h world.Versioned[pando.Host], of []pando.ServiceKey,
	at map[pando.ServiceKey]pando.StoreRevision,
) {
	c.noting.Lock()
	defer c.noting.Unlock()
	for _, s := range of {
		if k := c.known[s]; k != nil && k.at == at[s] {
			k.hosts[h.V.Name] = h.Modified
		}
	}
}
