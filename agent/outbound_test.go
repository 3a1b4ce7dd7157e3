package agent

import (
	"errors"
	"maps"
	"net/netip"
	"testing"
	"time"

	"pando.run/pando"
)

// ledgers keeps who pays for an address. It fails as often as a test says.
type ledgers struct {
	of    map[netip.Addr]pando.Tenant
	fails int
}

func (l *ledgers) Charge(link pando.Link, t pando.Tenant) error {
	if l.fails--; l.fails >= 0 {
		return errors.New("the kernel is busy")
	}
	l.of[link.IP4] = t
	return nil
}

func (l *ledgers) Forget(link pando.Link) error {
	delete(l.of, link.IP4)
	return nil
}

// The tenant of an instance pays for its connections from its start to its end, also when the
// kernel fails at first and after a restart of the agent.
func TestATenantPaysForTheConnectionsOfItsInstances(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		book := &ledgers{of: map[netip.Addr]pando.Tenant{}, fails: 2}
		b.outbound = book
		b.start()
		b.serving("web-1", 1)
		b.pass(5 * time.Second)
		at := b.world().Instances["web-1"].V.IP4
		want := map[netip.Addr]pando.Tenant{at: web.Tenant}
		if !maps.Equal(book.of, want) {
			t.Errorf("%v pays, want %v", book.of, want)
		}
		clear(book.of)
		b.restart()
		b.pass(5 * time.Second)
		if !maps.Equal(book.of, want) {
			t.Errorf("after a restart %v pays, want %v", book.of, want)
		}
		b.drain("web-1", true)
		b.pass(time.Minute)
		if len(book.of) > 0 {
			t.Errorf("after its end %v pays", book.of)
		}
	})
}
