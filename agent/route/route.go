// Package route decides which VIPs a host announces to routers: those of the services that the host
// steers, while nothing speaks against the host as a whole. Every host announces the same VIPs, and
// the routers share the flows out.
//
// A host announces none while it leaves, while it reaches less than half of the hosts, and while it
// follows the store no longer although another host does. It opens no session before its tables are
// in force: a router that waits for it after a restart would drop the routes too early.
package route

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
)

// The times of an announcer.
const (
	beatEvery = 100 * time.Millisecond // between two looks at the host
	askEvery  = time.Second            // between two questions to the others
	askMax    = 500 * time.Millisecond // for their answers
)

// Source returns the view of this host.
type Source interface {
	// View returns the newest view.
	View() View
	// Sighted reports whether another host announces VIPs and follows the store.
	Sighted(ctx context.Context) bool
	// Changed returns a channel that is closed at the next change of the dead hosts.
	Changed() <-chan struct{}
}

// View is the knowledge of one host about itself and the others.
type View struct {
	Ready       bool // the table of every service is in force
	Leaving     bool
	Hosts, Dead int    // with a lease, this one included; those that the probes find dead
	Blind       string // why this host does not follow the store; "": it does
}

// Config has the parts of an announcer.
type Config struct {
	Routers pando.Routers
	Source  Source
	Ends    func() bool // at the end of Run: no agent follows on this host
	Clock   pando.Clock
	Log     *slog.Logger
}

// Announcer announces VIPs until the context of Run ends.
type Announcer struct {
	Config

	mu     sync.Mutex
	steers map[pando.ServiceKey]table // in force on this host
	known  map[pando.ServiceKey][]netip.Addr
	news   map[pando.ServiceKey]bool // to compare; the services bound it
	moved  chan struct{}             // holds an element when news may have one
	vips   int                       // of known
	unable int                       // of steers
	silent string                    // why it announces none
	blind  string

	// Of the goroutine of Run:
	sighted bool
	asked   time.Time
	failed  string
}

// table is the part of a steering table that counts here.
type table struct {
	vips []netip.Addr
	able bool // new flows have a way
}

// New returns an announcer that has announced nothing.
func New(c Config) *Announcer {
	return &Announcer{
		Config: c, steers: map[pando.ServiceKey]table{}, known: map[pando.ServiceKey][]netip.Addr{},
		news: map[pando.ServiceKey]bool{}, moved: make(chan struct{}, 1), silent: "this host starts",
	}
}

// Steered notes the table of a service that came into force, or its end. It never waits. It is for
// steer.Queue.Watch.
func (a *Announcer) Steered(t pando.SteeringTable, lost []netip.Addr, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if was, ok := a.steers[t.Service]; ok && !was.able {
		a.unable--
	}
	if gone {
		delete(a.steers, t.Service)
	} else {
		is := table{able: balance.Serves(t, lost)}
		for _, vip := range []netip.Addr{t.VIP4, t.VIP6} {
			if vip.IsValid() {
				is.vips = append(is.vips, vip)
			}
		}
		a.steers[t.Service] = is
		if !is.able {
			a.unable++
		}
	}
	a.note(t.Service)
}

// note queues a service. The caller holds the lock.
func (a *Announcer) note(s pando.ServiceKey) {
	a.news[s] = true
	select {
	case a.moved <- struct{}{}:
	default:
	}
}

// Run announces and withdraws VIPs until ctx ends.
func (a *Announcer) Run(ctx context.Context) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	open := func() {
		sessions.Go(func() {
			if err := a.Routers.Serve(ctx, a.ends); err != nil {
				a.Log.Error("the sessions with the routers ended with an error", "error", err)
			}
		})
	}
	ready := false
	for ctx.Err() == nil {
		news := a.Source.Changed()
		v := a.Source.View()
		if ready || v.Ready {
			a.step(ctx, v)
		}
		if !ready && v.Ready {
			ready = true
			open()
		}
		a.wait(ctx, news, ready)
	}
	if !ready {
		open() // it ends at once
	}
}

// wait waits for a change or the next beat.
func (a *Announcer) wait(ctx context.Context, news <-chan struct{}, ready bool) {
	moved := a.moved
	if !ready {
		moved = nil
	}
	timer, stop := a.Clock.After(beatEvery)
	defer stop()
	select {
	case <-ctx.Done():
	case <-news:
	case <-moved:
	case <-timer:
	}
}

// ends reports whether the routes go with the sessions.
func (a *Announcer) ends() bool { return a.Source.View().Leaving || a.Ends != nil && a.Ends() }

// step brings the routes to the newest view.
func (a *Announcer) step(ctx context.Context, v View) {
	a.look(ctx, v)
	why := balance.NoRoutes(v.Leaving, v.Hosts, v.Dead, v.Blind, a.sighted)
	a.mu.Lock()
	a.blind = v.Blind
	if why != a.silent {
		if (why == "") != (a.silent == "") {
			for s := range a.steers {
				a.news[s] = true
			}
		}
		a.silent = why
		a.report(why)
	}
	news := make([]pando.ServiceKey, 0, len(a.news))
	for s := range a.news {
		news = append(news, s)
	}
	clear(a.news)
	a.mu.Unlock()
	slices.SortFunc(news, pando.ServiceKey.Compare)
	a.bring(news)
}

// report logs a change of the host as a whole.
func (a *Announcer) report(why string) {
	if why != "" {
		a.Log.Warn("this host announces no VIP to routers", "why", why)
		return
	}
	a.Log.Info("this host announces its VIPs to routers", "services", len(a.steers))
}

// look asks the others whether they see more than this host, once a second.
func (a *Announcer) look(ctx context.Context, v View) {
	now := a.Clock.Now()
	switch {
	case v.Blind == "":
		a.sighted = false
	case !a.sighted && now.Sub(a.asked) >= askEvery:
		a.asked = now
		ctx, cancel := context.WithTimeout(ctx, askMax)
		defer cancel()
		a.sighted = a.Source.Sighted(ctx)
	}
}

// bring announces and withdraws the VIPs of some services. A failure is tried again at the next
// beat.
func (a *Announcer) bring(all []pando.ServiceKey) {
	for _, s := range all {
		a.mu.Lock()
		is, silent := a.steers[s], a.silent != ""
		was := a.known[s]
		a.mu.Unlock()
		var wanted []netip.Addr
		if is.able && !silent {
			wanted = is.vips
		}
		err := a.change(was, wanted)
		a.mu.Lock()
		if err != nil {
			a.news[s] = true
			if text := err.Error(); text != a.failed {
				a.failed = text
				a.Log.Error("routes to a service did not change; it is tried again", "service", s,
					"error", err)
			}
		} else {
			a.vips += len(wanted) - len(was)
			if a.known[s] = wanted; len(wanted) == 0 {
				delete(a.known, s)
			}
		}
		a.mu.Unlock()
	}
}

// change replaces announced VIPs by wanted ones.
func (a *Announcer) change(was, wanted []netip.Addr) error {
	var old, fresh []netip.Addr
	for _, vip := range was {
		if !slices.Contains(wanted, vip) {
			old = append(old, vip)
		}
	}
	for _, vip := range wanted {
		if !slices.Contains(was, vip) {
			fresh = append(fresh, vip)
		}
	}
	if len(old) > 0 {
		if err := a.Routers.Withdraw(old); err != nil {
			return fmt.Errorf("withdraw: %w", err)
		}
	}
	if len(fresh) > 0 {
		if err := a.Routers.Announce(fresh); err != nil {
			return fmt.Errorf("announce: %w", err)
		}
	}
	return nil
}

// Routes returns the routes of this host and its sessions.
func (a *Announcer) Routes() pando.Routes {
	a.mu.Lock()
	defer a.mu.Unlock()
	return pando.Routes{
		VIPs: a.vips, Unable: a.unable, Why: a.silent, Blind: a.blind, Routers: a.Routers.Status(),
	}
}
