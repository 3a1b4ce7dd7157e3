// Package announce makes one host of a network answer for each VIP. Each VIP has a holder by a pure
// rule (balance.Holders) over the hosts that have a lease and that the probes find alive.
//
// A host takes VIPs before it answers for them: it asks every living host to leave them, and learns
// the flows of that host's instances. The asked host refuses while its own view makes it their
// holder. So one host answers at any time, or none while two views differ.
//
// Two hosts that held one VIP during a cut agree after it: each offers what the rule gives to the
// other, which takes it again, and so the offerer leaves it.
//
// It never answers by a view from before a pause, or from before a suspension of its machine: it then
// takes all its VIPs again.
package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/edge"
)

// The times of a holder.
const (
	beatEvery = 100 * time.Millisecond // between two looks at the hosts
	// PauseMax is the longest silence of this process that changes nothing. The other hosts need
	// longer to find this one dead.
	PauseMax    = 400 * time.Millisecond
	askWait     = 300 * time.Millisecond // for the answer of a host
	formerMax   = time.Minute            // a host without a lease is asked for this long
	learnAgain  = 200 * time.Millisecond // flows may begin while the first ones are learned
	repeatAfter = time.Second            // an announcement may be lost
	offerEvery  = time.Second            // to a host that does not take what it is offered
)

// Source returns the view of this host.
type Source interface {
	// View returns the newest view. Dead is by host name.
	View() View
	// Changed returns a channel that is closed at the next change of the dead hosts.
	Changed() <-chan struct{}
	// VIPs returns the VIPs of all services in some shares.
	VIPs(s edge.Shares) []netip.Addr
}

// View is the knowledge of one host about the others.
type View struct {
	At pando.StoreRevision
	// Segment is the network of this host. Hosts have a lease and answer there; this one is among
	// them, unless it leaves or has lost its lease.
	Segment string
	Hosts   []pando.HostName
	Others  []pando.Host    // every other host with a lease, on any network
	Dead    map[string]bool // of all hosts, by the probes
}

// Config has the parts of a holder.
type Config struct {
	Own       pando.HostName
	Announcer edge.Announcer
	Peers     edge.VIPPeers
	Flows     edge.FlowBook // nil: flows are not learned
	Source    Source
	Clock     pando.Clock
	Log       *slog.Logger
}

// Holder answers for the VIPs of one host until the context of Run ends.
type Holder struct {
	Config

	mu      sync.Mutex
	held    edge.Shares
	yielded edge.Shares   // since the step in progress began
	offered edge.Shares   // that another host has, and offers
	until   time.Time     // the view is confirmed until then
	slept   time.Duration // of this machine at that time
	why     string        // of the newest change of held
	waits   string        // why shares are not held yet

	// Of the goroutine of Run:
	former map[pando.HostName]formerHost
	later  []errand
	offers time.Time // the next ones
	rule   [edge.VIPShares]string
	ruleOf string // the hosts of rule
}

// formerHost is a host that had a lease.
type formerHost struct {
	pando.Host
	until time.Time
}

// errand is a thing to do again about shares that were taken.
type errand struct {
	at     time.Time
	learns bool
	shares edge.Shares
}

// New returns a holder.
func New(c Config) *Holder { return &Holder{Config: c, former: map[pando.HostName]formerHost{}} }

// Run takes and leaves VIPs until ctx ends.
func (h *Holder) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { h.beat(ctx) })
	wg.Go(func() { _ = h.Announcer.Serve(ctx, h.answers) })
	for ctx.Err() == nil {
		news := h.Source.Changed()
		h.step(ctx)
		timer, stop := h.Clock.After(beatEvery)
		select {
		case <-ctx.Done():
		case <-news:
		case <-timer:
		}
		stop()
	}
}

// beat confirms that this process runs. It leaves all VIPs after a pause.
func (h *Holder) beat(ctx context.Context) {
	for ctx.Err() == nil {
		h.confirm()
		_ = pando.Sleep(ctx, h.Clock, beatEvery)
	}
}

func (h *Holder) confirm() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, slept := h.Clock.Now(), pando.Suspended(h.Clock)
	late, asleep := now.Sub(h.until), slept-h.slept
	switch {
	case h.until.IsZero():
	case late > 0:
		h.drop(fmt.Sprintf("this agent paused for %s: another host may answer now",
			(late + PauseMax).Round(time.Millisecond)))
	case asleep > PauseMax:
		h.drop(fmt.Sprintf("this machine was suspended for %s: another host may answer now",
			asleep.Round(time.Millisecond)))
	}
	h.until, h.slept = now.Add(PauseMax), slept
}

// drop leaves all VIPs. A take in progress gets none: its view is older. The caller holds the lock.
func (h *Holder) drop(why string) {
	for n := range edge.VIPShares {
		h.yielded.Add(n)
	}
	if h.held.Len() > 0 {
		h.Log.Warn("this host answers for no VIP any more", "shares", h.held.Len(), "why", why)
		h.held, h.why = edge.Shares{}, why
	}
}

// answers reports whether this host answers for a VIP right now.
func (h *Holder) answers(vip netip.Addr) bool {
	if vip == pando.Gateway4 || vip == pando.Gateway6 {
		return false // every host has them
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held.Has(edge.VIPShare(vip)) && h.Clock.Now().Before(h.until) &&
		pando.Suspended(h.Clock)-h.slept <= PauseMax
}

// wanted returns the shares that a view gives to this host. silent is why it must answer for none.
func (h *Holder) wanted(v View) (own edge.Shares, silent string) {
	living, dead := make([]string, 0, len(v.Hosts)), 0
	for _, name := range v.Hosts {
		if v.Dead[string(name)] && name != h.Own {
			dead++
			continue
		}
		living = append(living, string(name))
	}
	if !balance.MayAnswer(len(v.Hosts), dead) {
		return own, fmt.Sprintf("this host reaches %d of the %d hosts that answer on %s: the others "+
			"take over", len(living), len(v.Hosts), v.Segment)
	}
	if !slices.Contains(v.Hosts, h.Own) {
		return own, ""
	}
	for n, name := range h.holders(living) {
		if name == string(h.Own) {
			own.Add(n)
		}
	}
	return own, ""
}

// holders returns the rule for some hosts. It is computed once per set of hosts.
func (h *Holder) holders(living []string) [edge.VIPShares]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if key := strings.Join(living, " "); key != h.ruleOf {
		h.rule, h.ruleOf = balance.Holders(living), key
	}
	return h.rule
}

// step brings the held shares to the newest view. Shares that are granted meanwhile stay away: the
// asker may have a newer view.
func (h *Holder) step(ctx context.Context) {
	h.mu.Lock()
	h.yielded = edge.Shares{}
	h.mu.Unlock()
	v := h.Source.View()
	h.remember(v)
	own, silent := h.wanted(v)
	h.mu.Lock()
	if silent != "" {
		h.drop(silent)
	}
	missing, surplus := own.Less(h.held.Less(h.offered)), h.held.Less(own)
	h.offered = edge.Shares{}
	h.mu.Unlock()
	if missing.Len() > 0 {
		h.take(ctx, v, missing)
	}
	if surplus.Len() > 0 {
		h.offer(ctx, v, surplus)
	}
	h.run(ctx, v)
}

// offer offers shares to the hosts that the rule gives them to. A holder asks for shares only while it
// lacks them, so two holders would stay two.
func (h *Holder) offer(ctx context.Context, v View, surplus edge.Shares) {
	now := h.Clock.Now()
	if now.Before(h.offers) {
		return
	}
	h.offers = now.Add(offerEvery)
	to := map[string]edge.Shares{}
	living := slices.DeleteFunc(slices.Clone(v.Hosts), func(name pando.HostName) bool {
		return v.Dead[string(name)] && name != h.Own
	})
	for n, name := range h.holders(texts(living)) {
		if surplus.Has(n) && name != string(h.Own) {
			s := to[name]
			s.Add(n)
			to[name] = s
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	var wg sync.WaitGroup
	for _, o := range v.Others {
		s := to[string(o.Name)]
		if s.Len() == 0 {
			continue
		}
		wg.Go(func() {
			_, err := h.Peers.TakeVIPs(ctx, o, edge.VIPTake{
				Host: h.Own, Segment: v.Segment, Shares: s, At: v.At, Offers: true,
			})
			if err != nil {
				h.Log.Debug("a host was not offered its VIPs", "host", o.Name, "error", err)
			}
		})
	}
	wg.Wait()
}

// Offered notes shares that another host has, and leaves once this one takes them. The next step
// takes those that its view gives to this host.
func (h *Holder) Offered(t edge.VIPTake) {
	v := h.Source.View()
	if t.Segment != v.Segment || t.Host == h.Own {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if both := t.Shares.And(h.held); both.Len() > 0 {
		h.Log.Warn("two hosts answer for the same VIPs; the rule leaves one", "other", t.Host, "shares",
			both.Len())
	}
	h.offered = h.offered.Or(t.Shares)
}

// texts returns names as plain texts.
func texts(names []pando.HostName) (out []string) {
	for _, name := range names {
		out = append(out, string(name))
	}
	return out
}

// remember keeps hosts that lost their lease. One that is merely cut from the store may answer.
func (h *Holder) remember(v View) {
	now := h.Clock.Now()
	for _, o := range v.Others {
		h.former[o.Name] = formerHost{o, now.Add(formerMax)}
	}
	maps.DeleteFunc(h.former, func(_ pando.HostName, f formerHost) bool { return now.After(f.until) })
}

// take asks all living hosts for shares, learns their flows and holds the granted shares.
func (h *Holder) take(ctx context.Context, v View, missing edge.Shares) {
	refused, why := h.ask(ctx, v, missing)
	h.mu.Lock()
	got := missing.Less(refused).Less(h.yielded)
	h.held = h.held.Or(got)
	if why != "" && why != h.waits {
		h.Log.Info("this host waits for VIPs", "shares", refused.Len(), "why", why)
	}
	h.waits = why
	if got.Len() > 0 {
		h.why = h.reason(v)
	}
	h.mu.Unlock()
	if got.Len() == 0 {
		return
	}
	h.announce(got)
	h.Log.Info("this host answers for VIPs", "shares", got.Len(), "segment", v.Segment,
		"why", h.reason(v))
	now := h.Clock.Now()
	h.later = append(h.later, errand{now.Add(learnAgain), true, got},
		errand{now.Add(repeatAfter), false, got})
}

// reason names the hosts without which the rule gives this host its shares.
func (h *Holder) reason(v View) string {
	var dead []string
	for _, name := range v.Hosts {
		if v.Dead[string(name)] {
			dead = append(dead, string(name))
		}
	}
	if len(dead) > 0 {
		return "dead by the probes: " + strings.Join(dead, " ")
	}
	return fmt.Sprintf("its part of %d hosts", len(v.Hosts))
}

// ask asks all living hosts for shares at the same time, and learns their flows. A host of this
// network that does not answer refuses all: it may answer for them.
func (h *Holder) ask(
	ctx context.Context, v View, s edge.Shares,
) (refused edge.Shares, why string) {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, f := range h.former {
		if v.Dead[string(f.Name)] || f.Name == h.Own {
			continue
		}
		rival := slices.Contains(v.Hosts, f.Name)
		wg.Go(func() {
			g, err := h.Peers.TakeVIPs(ctx, f.Host, edge.VIPTake{
				Host: h.Own, Segment: v.Segment, Shares: s, At: v.At, Gone: !rival,
			})
			err = h.learn(ctx, g.Flows, err)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && rival {
				g.Refused = s
			}
			if g.Refused.Len() > 0 {
				refused, why = refused.Or(g.Refused), fmt.Sprintf("host %s answers for them", f.Name)
			}
			if err != nil && rival {
				why = fmt.Sprintf("host %s does not leave them: %v", f.Name, err)
			}
		})
	}
	wg.Wait()
	return refused, why
}

// learn adds the flows of a host's answer. It returns nil for a host that holds no VIP: its agent
// has ended, or is of an earlier build.
func (h *Holder) learn(ctx context.Context, flows []edge.InstanceFlows, err error) error {
	if errors.Is(err, pando.ErrNotFound) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil || h.Flows == nil || len(flows) == 0 {
		return err
	}
	n, err := h.Flows.LearnFlows(ctx, flows)
	if err != nil {
		h.Log.Error("flows of other hosts were not learned", "error", err)
	}
	if n > 0 {
		h.Log.Info("this host learned flows of other hosts", "flows", n)
	}
	return nil // a VIP without an answer harms more flows
}

// run does the errands that are due, for the shares that are still held.
func (h *Holder) run(ctx context.Context, v View) {
	now := h.Clock.Now()
	due := slices.Clone(h.later)
	h.later = slices.DeleteFunc(h.later, func(e errand) bool { return !e.at.After(now) })
	for _, e := range due {
		if e.at.After(now) {
			continue
		}
		h.mu.Lock()
		s := e.shares.And(h.held)
		h.mu.Unlock()
		switch {
		case s.Len() == 0:
		case e.learns:
			_, _ = h.ask(ctx, v, s)
		default:
			h.announce(s)
		}
	}
}

func (h *Holder) announce(s edge.Shares) {
	if vips := h.Source.VIPs(s); len(vips) > 0 {
		if err := h.Announcer.Announce(vips); err != nil {
			h.Log.Warn("VIPs were not announced; machines find them at their next request",
				"error", err)
		}
	}
}

// Grant leaves the shares of a take to the asker, and returns those that this host keeps: its view
// makes it their holder, and the asker's is no newer about its lease.
func (h *Holder) Grant(t edge.VIPTake) (refused edge.Shares) {
	v := h.Source.View()
	own, _ := h.wanted(v)
	if t.Segment == v.Segment && t.Host != h.Own && (!t.Gone || t.At <= v.At) {
		refused = t.Shares.And(own)
	}
	if t.Segment != v.Segment {
		return refused // another network has another holder
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	left := t.Shares.Less(refused)
	if lost := left.And(h.held); lost.Len() > 0 {
		h.Log.Info("another host answers for VIPs of this one", "host", t.Host, "shares", lost.Len())
		h.why = fmt.Sprintf("host %s took %d shares", t.Host, lost.Len())
	}
	h.held, h.yielded = h.held.Less(left), h.yielded.Or(left)
	return refused
}

// Held returns the shares for which this host answers, and the reason of their newest change.
func (h *Holder) Held() (s edge.Shares, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held, h.why
}
