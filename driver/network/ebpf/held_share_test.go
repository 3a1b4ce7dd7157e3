package ebpf

import (
	"testing"

	"pando.run/pando"
)

// The first packets that wait for the sleeping services of one tenant leave room for those of another
// tenant and of operators, and packets that go make room again.
func TestATenantLeavesRoomForHeldPackets(t *testing.T) {
	s := newSleepers(nil)
	n := uint32(0)
	flood := func(tenant pando.Tenant, services int) (held int64) {
		before := s.count.Use(tenant).All
		for range services {
			n++
			s.of[n] = &sleeper{key: pando.ServiceKey{Tenant: tenant, Name: "web"}}
			for range 2 * heldPerService {
				s.take(n, []byte{1})
				select {
				case <-s.knocks:
				default:
				}
			}
		}
		return s.count.Use(tenant).All - before
	}
	for _, c := range []struct {
		tenant   pando.Tenant
		services int
		want     int64
	}{
		{"acme", 1, heldPerService}, {"acme", 10, heldBound.Each - heldPerService}, {"bank", 10, heldBound.Each},
		{"coop", 10, heldBound.Each}, {"late", 10, heldBound.Total - heldBound.Reserve - 3*heldBound.Each},
		{pando.DefaultTenant, 1, heldPerService},
	} {
		if got := flood(c.tenant, c.services); got != c.want {
			t.Errorf("%s has %d packets more, want %d", c.tenant, got, c.want)
		}
	}
	s.drop(1)
	if got := flood("acme", 2); got != heldPerService {
		t.Errorf("after %d packets went, %d more are held", heldPerService, got)
	}
}
