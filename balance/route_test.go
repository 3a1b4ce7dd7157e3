package balance

import (
	"net/netip"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestAHostAnnouncesUnlessSomethingSpeaksAgainstIt(t *testing.T) {
	for _, c := range []struct {
		name        string
		leaving     bool
		hosts, dead int
		blind       string
		sighted     bool
		want        string // a part of the reason
	}{
		{name: "alone", hosts: 1},
		{name: "before its own record arrived"},
		{name: "one of two", hosts: 2, dead: 1},
		{name: "the larger side", hosts: 5, dead: 2},
		{name: "the smaller side", hosts: 5, dead: 3, want: "2 of 5 hosts"},
		{name: "leaving", hosts: 3, leaving: true, want: "it leaves"},
		{name: "blind, like all", hosts: 3, blind: "the store is older"},
		{name: "blind, and others see", hosts: 3, blind: "the store is older", sighted: true,
			want: "the store is older"},
		{name: "seeing", hosts: 3, sighted: true},
	} {
		got := NoRoutes(c.leaving, c.hosts, c.dead, c.blind, c.sighted)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestATableServesByAnEndpointThatIsInReach(t *testing.T) {
	near, far := netip.Addr{}, netip.MustParseAddr("192.0.2.2")
	third := netip.MustParseAddr("192.0.2.3")
	lost := []netip.Addr{far}
	table := func(at ...netip.Addr) (t pando.SteeringTable) {
		for _, a := range at {
			t.Endpoints = append(t.Endpoints, pando.Endpoint{Weight: 1, Remote: a})
		}
		return t
	}
	drains := table(near, far)
	drains.Endpoints[0].Weight = 0
	allDrain := table(near, far)
	allDrain.Endpoints[0].Weight, allDrain.Endpoints[1].Weight = 0, 0
	farDrains := pando.SteeringTable{Endpoints: allDrain.Endpoints[1:]}
	for _, c := range []struct {
		name  string
		table pando.SteeringTable
		lost  []netip.Addr
		want  bool
	}{
		{"without instances", table(), nil, true},
		{"all in reach", table(far), nil, true},
		{"its only instance is out of reach", table(far), lost, false},
		{"one here", table(near, far), lost, true},
		{"all drain, one here", allDrain, lost, true},
		{"all drain, none in reach", farDrains, lost, false},
		{"one on a third host", table(far, third), lost, true},
		{"the one here drains", drains, lost, false},
	} {
		if got := Serves(c.table, c.lost); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
