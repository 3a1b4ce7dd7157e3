package control

import (
	"net/netip"
	"testing"

	"pando.run/pando"
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
	tb := newTable(t)
	tb.deploy(1, machines(8080))
	tb.steps("the endpoints serve", func() bool { return tb.count(pando.PhaseInRotation) == 2 })
	tb.deploy(2, machines(8081))
	tb.steps("the new endpoints serve", func() bool {
		if n := tb.count(pando.PhaseInRotation); n < 2 {
			t.Fatalf("%d endpoints get new connections: %v", n, tb.w.Of(web))
		}
		return tb.w.Services[web].V.Current == 2
	})
	held := map[int]int{}
	for _, i := range tb.w.Of(web) {
		if i.Revision == 2 {
			held[i.Ordinal]++
		}
	}
	if len(held) != 2 || held[1] != 1 || held[2] != 1 {
		t.Errorf("the ordinals of the new revision are %v", held)
	}
}
