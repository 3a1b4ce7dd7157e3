package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/world"
)

// A tenant with a small range deploys short-lived names again and again. The last address that was
// released is the last one that is given again. A full range refuses with its numbers.
func TestARangeOfVIPsIsNotUsedUpByNamesThatCameAndWent(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		small := "10.127.9.0/30"
		if _, err := l.SetTenant(t.Context(), "acme", pando.AccountChange{VIPs: &small},
			anna); err != nil {
			t.Fatal(err)
		}
		var had []string
		for n := range 10 {
			name := fmt.Sprintf("pr-%d", n)
			st, err := l.preview(t, "acme", name)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			had = append(had, st.VIP4.String())
			l.removed(t, pando.ServiceKey{Tenant: "acme", Name: pando.ServiceName(name)})
		}
		want := []string{"10.127.9.0", "10.127.9.1", "10.127.9.2", "10.127.9.3", "10.127.9.0",
			"10.127.9.1", "10.127.9.2", "10.127.9.3", "10.127.9.0", "10.127.9.1"}
		if !slices.Equal(had, want) {
			t.Errorf("the services had %v, want %v", had, want)
		}
		if st, err := l.preview(t, "acme", "pr-8"); err != nil || st.VIP4.String() != had[8] {
			t.Errorf("a name that comes back has %s (%v), want its last address %s", st.VIP4, err, had[8])
		}
		for n := range 3 {
			if _, err := l.preview(t, "acme", fmt.Sprintf("full-%d", n)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := l.preview(t, "acme", "more")
		if !errors.Is(err, pando.ErrRefused) ||
			!strings.Contains(err.Error(), "4 of 4 addresses of 10.127.9.0/30 are in use") {
			t.Errorf("beyond the range: %v", err)
		}
		if _, err := l.preview(t, "bank", "till"); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		if _, err := l.preview(t, "default", "own"); err != nil {
			t.Errorf("an operator: %v", err)
		}
	})
}

// A new leader knows the addresses that rest.
func TestRestsOutliveTheirLeader(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		first, err := l.preview(t, "acme", "first")
		if err != nil {
			t.Fatal(err)
		}
		l.removed(t, pando.ServiceKey{Tenant: "acme", Name: "first"})
		at, err := l.registry.Snapshot(t.Context(), pando.Root)
		w := world.New() // as a new leader reads the store
		if err := errors.Join(err, w.Apply(at.Records, at.Revision)); err != nil {
			t.Fatal(err)
		}
		if _, rests := w.Rests(first.VIP4); !rests {
			t.Errorf("%s does not rest", first.VIP4)
		}
		if vip, _ := decide.VIPsOf(w, "bank").Next(pando.DefaultService("x")); vip == first.VIP4 {
			t.Errorf("another tenant gets %s at once", vip)
		}
	})
}

// preview deploys a service of a tenant that has no instance.
func (l leadership) preview(
	t *testing.T, tenant pando.Tenant, name string,
) (pando.ServiceStatus, error) {
	t.Helper()
	return l.Deploy(t.Context(), pando.Spec{Name: pando.ServiceName(name), Tenant: tenant,
		Command: []string{"web"}, Scale: pando.Scale{Max: 1}, Ports: []pando.Port{{Published: 80,
			Target: 8080, Protocol: "tcp"}}}, anna)
}
