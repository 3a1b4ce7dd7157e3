// Package outbound tells the driver of connections to other machines which tenant pays for which
// instance.
//
// It never delays a start: it repeats what fails in the background.
package outbound

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"pando.run/pando"
)

// retryWait is the wait after a failure.
const retryWait = 200 * time.Millisecond

// Payments are the tenants that pay for the addresses of this host. The starts of instances do not
// wait for them.
type Payments struct {
	out     pando.Outbound // nil: connections are not shared
	clock   pando.Clock
	log     *slog.Logger
	mu      sync.Mutex
	pending map[netip.Addr]payment // the newest wish for each address
	filled  chan struct{}
}

// payment is the tenant of a link, or "" for a link without an instance.
type payment struct {
	link   pando.Link
	tenant pando.Tenant
}

// New returns payments for a driver. With a nil driver, connections are not shared. Run carries
// them out.
func New(out pando.Outbound, clock pando.Clock, log *slog.Logger) *Payments {
	return &Payments{out: out, clock: clock, log: log, pending: map[netip.Addr]payment{},
		filled: make(chan struct{}, 1)}
}

// Charge counts the connections of a link for a tenant. "" ends that.
func (p *Payments) Charge(l pando.Link, t pando.Tenant) {
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

// Run carries out the wishes until ctx ends.
func (p *Payments) Run(ctx context.Context) {
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
			if pando.Sleep(ctx, p.clock, retryWait) != nil {
				return
			}
		}
	}
}

// settle carries out all wishes. Those that fail stay, unless there is a newer one.
func (p *Payments) settle() (failed error) {
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
