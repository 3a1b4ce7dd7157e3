package inspect

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/access"
)

func TestTheSessionsOfATenantLeaveRoomForOthers(t *testing.T) {
	w := New(Inspector{Host: "h1"})
	of := func(tenant pando.Tenant) context.Context {
		return access.WithToken(t.Context(), access.Token{TokenKey: access.TokenKey{Tenant: tenant}})
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
