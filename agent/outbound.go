package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"pando.run/pando"
)

// payments tells the driver of connections to other machines which tenant pays for which address. It
// does so beside the starts of instances, which wait for no rule.
type payments struct {
	out     pando.Outbound // nil: connections are not shared
	clock   pando.Clock
	log     *slog.Logger
	retry   time.Duration // after a failure
	mu      sync.Mutex
	pending map[netip.Addr]payment // the newest wish for each address
	filled  chan struct{}
}

// payment is the tenant of a link, or "" for a link without an instance.
type payment struct {
	link   pando.Link
	tenant pando.Tenant
}

func newPayments(out pando.Outbound, clock pando.Clock, log *slog.Logger, retry time.Duration) *payments {
	return &payments{out: out, clock: clock, log: log, retry: retry, pending: map[netip.Addr]payment{}, filled: make(chan struct{}, 1)}
}

// charge counts the connections of a link for a tenant. "" ends that.
func (p *payments) charge(l pando.Link, t pando.Tenant) {
	if p.out == nil || !l.IP4.IsValid() {
		return
	}
	p.mu.Lock()
	p.pending[l.IP4] = payment{l, t}
	p.mu.Unlock()
	select {
	case p.filled <- struct{}{}:
	default:
	}
}

// run carries out the wishes until ctx ends.
func (p *payments) run(ctx context.Context) {
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.filled:
		}
		for {
			err := p.settle()
			if err == nil {
				said = ""
				break
			}
			if err.Error() != said {
				said = err.Error()
				p.log.Error("charge a tenant for its connections: it is tried again", "error", err)
			}
			if pando.Sleep(ctx, p.clock, p.retry) != nil {
				return
			}
		}
	}
}

// settle carries out all wishes. Those that fail stay, unless there is a newer one.
func (p *payments) settle() (failed error) {
	p.mu.Lock()
	all := maps.Clone(p.pending)
	clear(p.pending)
	p.mu.Unlock()
	for at, w := range all {
		do := func() error { return p.out.Charge(w.link, w.tenant) }
		if w.tenant == "" {
			do = func() error { return p.out.Forget(w.link) }
		}
		err := do()
		if err == nil {
			continue
		}
		failed = err
		p.mu.Lock()
		if _, newer := p.pending[at]; !newer {
			p.pending[at] = w
		}
		p.mu.Unlock()
	}
	return failed
}
