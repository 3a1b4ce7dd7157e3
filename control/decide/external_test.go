package decide_test

import (
	"net/netip"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

// A new revision of endpoints serves before the old one drains, with each ordinal once. So an open
// connection of an old instance keeps no machine from new connections.
func TestEndpointsAreReplacedBesideTheOldOnes(t *testing.T) {
	machines := func(target uint16) func(*pando.Spec) {
		return func(s *pando.Spec) {
			s.Command, s.Scale = nil, pando.Scale{}
			s.Ports = []pando.Port{{Published: 80, Target: target, Protocol: pando.TCP}}
			for n := range byte(2) {
				a := netip.AddrFrom4([4]byte{192, 0, 2, n})
				s.Endpoints = append(s.Endpoints, pando.External{Address: a})
			}
		}
	}
	tb := decidetest.New(t)
	tb.Deploy(1, machines(8080))
	tb.Steps("the endpoints serve", func() bool { return tb.Count(pando.PhaseInRotation) == 2 })
	tb.Deploy(2, machines(8081))
	tb.Steps("the new endpoints serve", func() bool {
		if n := tb.Count(pando.PhaseInRotation); n < 2 {
			t.Fatalf("%d endpoints get new connections: %v", n, tb.W.Of(web))
		}
		return tb.W.Services[web].V.Current == 2
	})
	held := map[int]int{}
	for _, i := range tb.W.Of(web) {
		if i.Revision == 2 {
			held[i.Ordinal]++
		}
	}
	if len(held) != 2 || held[1] != 1 || held[2] != 1 {
		t.Errorf("the ordinals of the new revision are %v", held)
	}
}
