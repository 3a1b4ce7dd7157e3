package console

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// Two hosts of one network that answer for the same VIPs are named.
func TestTwoHoldersAreNamed(t *testing.T) {
	host := func(name, segment string, shares ...int) pando.HostStatus {
		var s edge.Shares
		for _, n := range shares {
			s.Add(n)
		}
		return pando.HostStatus{Host: pando.Host{Name: pando.HostName(name), Segment: segment},
			Losses: &pando.Losses{Holds: s.String()}}
	}
	got := twoHolders([]pando.HostStatus{host("h1", "a", 1, 2, 3), host("h2", "b", 1, 2, 3),
		host("h3", "a", 3, 4), {Host: pando.Host{Name: "h4", Segment: "a"}}})
	if len(got) != 1 || !strings.HasPrefix(got[0], "two holders: h1 and h3") ||
		!strings.Contains(got[0], " 1 of 256 ") {
		t.Errorf("%q", got)
	}
}
