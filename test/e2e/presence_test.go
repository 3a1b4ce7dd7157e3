package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// deadBy returns the hosts that find a host dead.
func deadBy(p *labtest.Pando, dead string) (by []string) {
	for name, h := range seen(p, p.Host()) {
		if h.Losses != nil && slices.Contains(strings.Fields(h.Losses.Dead), dead) {
			by = append(by, name)
		}
	}
	slices.Sort(by)
	return by
}

// awaitDead waits until exactly these hosts find a host dead.
func awaitDead(p *labtest.Pando, dead string, by ...string) {
	p.Helper()
	p.Await(dead+" to be dead for "+strings.Join(by, ", "), func() (string, bool) {
		got := deadBy(p, dead)
		return strings.Join(got, ", "), slices.Equal(got, by)
	})
}

// TestADeadHostLeavesRotation kills one of three hosts. Both others stop to send it new connections
// before its lease ends, and no connection to another host breaks.
func TestADeadHostLeavesRotation(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{
		Hosts: 3, One: true, Warden: true, Flags: []string{"--pool", "1"},
	})
	one, two, three := p.Hosts[0], p.Hosts[1], p.Hosts[2]
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 3, max: 3}"))
	web.Await("an instance on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 3 && len(seats(st)) == 3
	})
	p.KillAgent(two) // its kernel steers on: it is not dead, and its warden starts another agent
	held := web.Hold(two)
	awaitState(p, two, pando.HostHere)
	if by := deadBy(p, two); len(by) > 0 {
		t.Errorf("%s lost its agent only, and %v find it dead", two, by)
	}
	p.KillHost(three)
	began := time.Now()
	awaitDead(p, three, one, two)
	if since := time.Since(began); since >= pando.HostLease {
		t.Errorf("the verdict came after %v, not before the end of the lease", since)
	} else {
		t.Logf("both hosts found it dead within %v", since)
	}
	for range 12 {
		for _, from := range []string{labtest.Client, one, two} {
			web.Get(from, "/")
		}
	}
	has(t, p.Pando("hosts"), three+" answers no probe of "+one+", "+two)
	if out := held.Stop(); out.Code != 0 {
		t.Logf("the connection from %s ended: it may have been that of %s: %s", two, three, out.Text)
	}
}
