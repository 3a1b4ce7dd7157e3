package agent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"pando.run/pando"
	"pando.run/pando/agent/route"
)

// askedMax is the number of hosts that a blind host asks at a time whether they see more.
const askedMax = 3

// routing announces VIPs to the routers of this host's network.
type routing struct {
	a         *Agent
	announcer *route.Announcer // nil: this host speaks with no router
	unleased  atomic.Bool      // the host's lease was lost, and the store has not given another
}

func newRouting(a *Agent) *routing {
	r := &routing{a: a}
	if a.Routers != nil {
		r.announcer = route.New(route.Config{
			Routers: a.Routers, Source: routeSource{a}, Ends: a.Ends, Clock: a.Clock, Log: a.Log,
		})
		a.crews.steering.Watch(r.announcer.Steered)
	}
	return r
}

func (r *routing) run(ctx context.Context) {
	if r.announcer != nil {
		r.announcer.Run(ctx)
	}
}

// losses adds the routes of this host to its losses.
func (r *routing) losses(l pando.Losses) pando.Losses {
	if r.announcer != nil {
		is := r.announcer.Routes()
		l.Routes = &is
	}
	return l
}

// quiet reports whether this host announces no VIP to a router.
func (r *routing) quiet() bool { return r.announcer == nil || r.announcer.Routes().VIPs == 0 }

// routeSource is the view of this agent for its announcer.
type routeSource struct{ a *Agent }

var _ route.Source = routeSource{}

// View implements route.Source.
func (s routeSource) View() route.View {
	a := s.a
	var v route.View
	dead := s.dead()
	switch err := a.anchor.Frozen(); {
	case err != nil:
		v.Blind = err.Error()
	case a.routing.unleased.Load():
		v.Blind = "the store does not renew its lease"
	}
	settled := a.crews.steering.Settled()
	a.records.Lock()
	defer a.records.Unlock()
	v.Ready = settled && a.records.World.Seen > 0
	v.Leaving = !a.leaveBy.IsZero()
	others := s.others()
	v.Hosts = len(others) + 1
	for _, h := range others {
		if slices.Contains(dead, h.Name) {
			v.Dead++
		}
	}
	return v
}

// dead returns the hosts that the probes find dead.
func (s routeSource) dead() []pando.HostName {
	if s.a.Liveness == nil {
		return nil
	}
	return s.a.Liveness.Dead()
}

// others returns the other hosts with a lease. The caller holds the lock.
func (s routeSource) others() (all []pando.Host) {
	for name, h := range s.a.records.World.Hosts {
		if name != s.a.Host.Name && tables(s).vouched(h.V) {
			all = append(all, h.V)
		}
	}
	return all
}

// Changed implements route.Source.
func (s routeSource) Changed() <-chan struct{} {
	if s.a.Liveness == nil {
		return nil
	}
	return s.a.Liveness.Changed()
}

// Sighted implements route.Source. It asks some of the living hosts.
func (s routeSource) Sighted(ctx context.Context) bool {
	dead := s.dead()
	s.a.records.Lock()
	all := s.others()
	s.a.records.Unlock()
	all = slices.DeleteFunc(all, func(h pando.Host) bool { return slices.Contains(dead, h.Name) })
	var found atomic.Bool
	var asks sync.WaitGroup
	for _, h := range all[:min(len(all), askedMax)] {
		asks.Go(func() {
			l, err := s.a.Peers.Losses(ctx, h)
			if err == nil && l.Routes != nil && l.Routes.VIPs > 0 && l.Routes.Blind == "" {
				found.Store(true)
			}
		})
	}
	asks.Wait()
	return found.Load()
}
