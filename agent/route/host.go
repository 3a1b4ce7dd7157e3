package route

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/steer"
	"pando.run/pando/edge"
)

// askedMax is the number of hosts that a blind host asks at a time whether they see more.
const askedMax = 3

// Host announces VIPs to the routers of the network of one host. A host without Routers announces
// none.
type Host struct {
	source    *source
	announcer *Announcer // nil: this host speaks with no router
}

// HostConfig is what the routes of a host need.
type HostConfig struct {
	Own     pando.HostName
	Routers pando.Routers
	// Ends reports, at the end of the agent, that no agent follows on this host.
	Ends     func() bool
	Records  *records.Records
	Tables   *steer.Queue
	Peers    pando.Peers
	Liveness edge.Liveness // nil: no host is dead
	// Frozen returns why this host does not follow the store, or nil.
	Frozen func() error
	// LeaveBy returns the deadline for connections when the host leaves, or zero if it stays.
	LeaveBy func() time.Time
	Clock   pando.Clock
	Log     *slog.Logger
}

// NewHost returns the routes of a host. Run announces them.
func NewHost(c HostConfig) *Host {
	r := &Host{source: &source{c: c}}
	if c.Routers != nil {
		r.announcer = New(Config{
			Routers: c.Routers, Source: r.source, Ends: c.Ends, Clock: c.Clock, Log: c.Log,
		})
		c.Tables.Watch(r.announcer.Steered)
	}
	return r
}

// Run announces VIPs until ctx ends.
func (r *Host) Run(ctx context.Context) {
	if r.announcer != nil {
		r.announcer.Run(ctx)
	}
}

// SetUnleased notes that the host's lease was lost, or that the store has given another.
func (r *Host) SetUnleased(is bool) { r.source.unleased.Store(is) }

// Losses adds the routes of this host to its losses.
func (r *Host) Losses(l pando.Losses) pando.Losses {
	if r.announcer != nil {
		is := r.announcer.Routes()
		l.Routes = &is
	}
	return l
}

// IsQuiet reports whether this host announces no VIP to a router.
func (r *Host) IsQuiet() bool { return r.announcer == nil || r.announcer.Routes().VIPs == 0 }

// source is the view of one host for its announcer.
type source struct {
	c        HostConfig
	unleased atomic.Bool // the host's lease was lost, and the store has not given another
}

var _ Source = (*source)(nil)

// View implements Source.
func (s *source) View() View {
	var v View
	dead := s.dead()
	switch err := s.c.Frozen(); {
	case err != nil:
		v.Blind = err.Error()
	case s.unleased.Load():
		v.Blind = "the store does not renew its lease"
	}
	settled, leaveBy := s.c.Tables.Settled(), s.c.LeaveBy()
	s.c.Records.Lock()
	defer s.c.Records.Unlock()
	v.Ready = settled && s.c.Records.World.Seen > 0
	v.Leaving = !leaveBy.IsZero()
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
func (s *source) dead() []pando.HostName {
	if s.c.Liveness == nil {
		return nil
	}
	return s.c.Liveness.Dead()
}

// others returns the other hosts with a lease.
func (s *source) others() (all []pando.Host) {
	for name, h := range s.c.Records.World.Hosts {
		if name != s.c.Own && s.c.Records.IsVouched(s.c.Records.World, h.V) {
			all = append(all, h.V)
		}
	}
	return all
}

// Changed implements Source.
func (s *source) Changed() <-chan struct{} {
	if s.c.Liveness == nil {
		return nil
	}
	return s.c.Liveness.Changed()
}

// Sighted implements Source. It asks some of the living hosts.
func (s *source) Sighted(ctx context.Context) bool {
	dead := s.dead()
	s.c.Records.Lock()
	all := s.others()
	s.c.Records.Unlock()
	all = slices.DeleteFunc(all, func(h pando.Host) bool { return slices.Contains(dead, h.Name) })
	var found atomic.Bool
	var asks sync.WaitGroup
	for _, h := range all[:min(len(all), askedMax)] {
		asks.Go(func() {
			l, err := s.c.Peers.Losses(ctx, h)
			if err == nil && l.Routes != nil && l.Routes.VIPs > 0 && l.Routes.Blind == "" {
				found.Store(true)
			}
		})
	}
	asks.Wait()
	return found.Load()
}
