package agent

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/world"
)

func TestTheSessionsOfATenantLeaveRoomForOthers(t *testing.T) {
	w := &window{&Agent{Config: Config{Host: pando.Host{Name: "h1"}}}, newSessions(), newLogRoom()}
	of := func(tenant pando.Tenant) context.Context {
		return pando.WithToken(t.Context(), pando.Token{TokenKey: pando.TokenKey{Tenant: tenant}})
	}
	var err error
	for n := 0; err == nil; n++ {
		if _, err = w.enter(of("acme")); err == nil && n == pando.SessionsOfTenantMax {
			t.Fatalf("a tenant has %d sessions", n+1)
		}
	}
	if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "8 of the 8") {
		t.Errorf("beyond the share: %v", err)
	}
	if _, err := w.enter(of("bank")); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	for _, other := range []pando.Tenant{"c", "d", "e"} { // together they fill the rest
		for range pando.SessionsOfTenantMax {
			_, _ = w.enter(of(other))
		}
	}
	for n := range pando.SessionsReserve {
		if _, err := w.enter(t.Context()); err != nil {
			t.Errorf("session %d of operators: %v", n+1, err)
		}
	}
	if _, err := w.enter(t.Context()); err == nil {
		t.Error("the host has more sessions than its bound")
	}
}

func TestAnAddressHasTheTenantOfItsInstance(t *testing.T) {
	c := newCrews(&records{world: world.New()}, nil)
	r := &runner{id: "shop-1", service: pando.ServiceKey{Tenant: "acme", Name: "shop"}}
	a, b := netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")
	c.locate(r, pando.Link{}, pando.Link{IP4: a})
	if got, _, ok := c.InstanceAt(a); !ok || got.Tenant != "acme" {
		t.Errorf("at its address: %v, %v", got, ok)
	}
	other := &runner{id: "till-1", service: pando.ServiceKey{Tenant: "bank", Name: "till"}}
	c.locate(other, pando.Link{}, pando.Link{IP4: b})
	c.locate(r, pando.Link{IP4: b}, pando.Link{}) // a late word of a former owner
	if got, _, _ := c.InstanceAt(b); got.Tenant != "bank" {
		t.Errorf("the address of another has the tenant %q", got.Tenant)
	}
	c.locate(r, pando.Link{IP4: a}, pando.Link{})
	if len(c.at) != 1 {
		t.Errorf("left: %v", c.at)
	}
}
