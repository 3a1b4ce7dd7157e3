package outbound

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// book keeps who pays for an address. It fails as often as a test wants.
type book struct {
	of    map[netip.Addr]pando.Tenant
	fails int
}

func (b *book) Charge(l pando.Link, t pando.Tenant) error {
	if b.fails--; b.fails >= 0 {
		return errors.New("the kernel is busy")
	}
	b.of[l.IP4] = t
	return nil
}

func (b *book) Forget(l pando.Link) error {
	delete(b.of, l.IP4)
	return nil
}

// The newest tenant of an address pays, although the driver failed with the one before.
func TestTheNewestTenantPaysAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{of: map[netip.Addr]pando.Tenant{}, fails: 2}
		p := New(b, sim.Clock{}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx)
		l := pando.Link{IP4: netip.MustParseAddr("10.0.0.1")}
		p.Charge(l, "a")
		synctest.Wait()
		p.Charge(l, "b")
		time.Sleep(5 * retryWait)
		synctest.Wait()
		if got := b.of[l.IP4]; got != "b" {
			t.Errorf("tenant %q pays, want b", got)
		}
		p.Charge(l, "")
		synctest.Wait()
		if len(b.of) > 0 {
			t.Errorf("after the end of the instance %v pays", b.of)
		}
	})
}
