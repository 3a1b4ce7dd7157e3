package ebpf

import (
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
)

// The endpoints of one tenant on other hosts leave slots to another tenant and to operators.
func TestATenantLeavesSlotsForEndpointsOfOtherHosts(t *testing.T) {
	a, slot := newAways(), uint32(endpointsMax)
	fill := func(tenant pando.Tenant) (n int64) {
		for a.admits(tenant) == nil {
			a.note(slot, tenant)
			slot++
			n++
		}
		return n
	}
	owners := awayBound.Total - awayBound.Reserve
	for _, c := range []struct {
		tenant pando.Tenant
		want   int64
	}{{"acme", awayBound.Each}, {"bank", awayBound.Each}, {"coop", awayBound.Each},
		{"late", owners - 3*awayBound.Each}, {pando.DefaultTenant, awayBound.Reserve}} {
		if n := fill(c.tenant); n != c.want {
			t.Errorf("%s has %d slots, want %d", c.tenant, n, c.want)
		}
	}
	err := a.admits("acme")
	if !errors.Is(err, pando.ErrTooLarge) || !strings.Contains(err.Error(), "6144 of the 6144 that one owner") {
		t.Errorf("one more: %v", err)
	}
	a.forget(endpointsMax)
	a.forget(endpointsMax)
	if n := fill("acme"); n != 1 {
		t.Errorf("after one went, %d more", n)
	}
}
