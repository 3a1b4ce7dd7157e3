package rig

import (
	"net/netip"

	"pando.run/pando"
)

// East makes the client an instance of another service, and returns two ways to the VIP: the choice
// at the first packet, and at connect. The caller ends them.
func (s *Stand) East() (packet, connect Way, end func()) {
	s.t.Helper()
	d, end := Open(s.t, "bench", "rout")
	own, other := netip.MustParseAddr("10.128.0.200"), netip.MustParseAddr("10.127.0.8")
	guest := boxOf(s.t, "pdguest", own, other)
	err := guest.Inside(enoughPorts)
	if err == nil {
		err = d.Connect(s.t.Context(), guest.Link, nil, other, netip.Addr{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.Client = guest
	way := func(at pando.BalanceAt) Way {
		return Way{Name: string(at), To: always(VIP, Port), Begin: func() error {
			return s.publishAt(d, at)
		}}
	}
	return way(pando.AtPacket), way(pando.AtConnect), end
}
