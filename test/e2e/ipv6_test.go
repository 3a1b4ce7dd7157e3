package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestAClusterWithoutIPv4 runs a whole cluster on hosts that have IPv6 addresses alone. A service
// on three hosts answers everywhere, and the cluster notices the death of a host.
func TestAClusterWithoutIPv4(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true, OnlyIPv6: true})
	for n, h := range p.Hosts {
		is := awaitState(p, h, pando.HostHere)
		if !is.Address.Is6() {
			t.Errorf("host %d has the address %s", n+1, is.Address)
		}
	}
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 3, max: 6}"))
	st := web.Await("an instance on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 3 && len(seats(st)) == 3
	})
	web.VIP = "[" + st.VIP6.String() + "]"
	for _, from := range append([]string{labtest.Client}, p.Hosts...) {
		answered := map[string]bool{}
		p.Await("all three from "+from, func() (string, bool) {
			answered[web.Get(from, "/")] = true
			return strings.Join(slices.Collect(maps.Keys(answered)), ", "), len(answered) == 3
		})
	}
	held := web.Hold(labtest.Client)
	p.Pando("scale", "web", "6", "--wait")
	p.Pando("scale", "web", "3", "--wait")
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("a connection did not outlive the scaling: %s", out.Text)
	}
	p.Pando("scale", "web", "auto")
	p.KillHost(p.Hosts[2])
	p.Await("the probes to find the third host dead", func() (string, bool) {
		l := seen(p, p.Host())[p.Host()].Losses
		return fmt.Sprintf("%+v", l), l != nil && strings.Contains(l.Dead, p.Hosts[2])
	})
	awaitState(p, p.Hosts[2], pando.HostAway)
	web.Await("its instances on the other hosts", func(st pando.ServiceStatus) bool {
		on := seats(st)
		return on[p.Hosts[0]]+on[p.Hosts[1]] == 3
	})
	for _, from := range []string{labtest.Client, p.Hosts[0], p.Hosts[1]} {
		served(p, web, from)
	}
}
