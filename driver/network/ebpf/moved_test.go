package ebpf

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

// An instance moves to another host and back while every map fails at random. No slot is lost, and
// the tag of the instance leads to the slot that it has.
func TestAFailedPublicationOfAMoveKeepsNoSlot(t *testing.T) {
	f := openFaulty(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo) // the other hosts are at its addresses
	}
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 15))
	table := pando.SteeringTable{Service: pando.DefaultService("web"),
		VIP4:  netip.MustParseAddr("10.127.1.1"),
		Ports: []pando.Port{{Published: 80, Target: 80, Protocol: pando.TCP}}}
	here, away := len(f.index.free), len(f.index.freeAway)
	maps := []string{"services", "endpoints", "endpoint_names", "traffic", "arrivals", "aways",
		"doors"}
	failed := 0
	for step := range 300 {
		e := pando.Endpoint{Instance: "web-1", Weight: 100}
		if at := random.IntN(4); at < 2 {
			e.Remote = netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + at)})
		} else {
			e.Link = pando.Link{IfIndex: at, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
				HostMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
		}
		table.Endpoints = []pando.Endpoint{e}
		call := func() error { return f.Publish(t.Context(), table) }
		if err := f.without(maps[random.IntN(len(maps))], call); err != nil {
			failed++
		}
		if random.IntN(3) == 0 {
			continue // the instance moves again before the repetition
		}
		if err := call(); err != nil {
			t.Fatalf("step %d: the repetition: %v", step, err)
		}
		wantHere, wantAway := here-1, away
		if e.Remote.IsValid() {
			wantHere, wantAway = here, away-1
		}
		if len(f.index.free) != wantHere || len(f.index.freeAway) != wantAway {
			t.Fatalf("step %d: %d and %d slots are free, want %d and %d", step, len(f.index.free),
				len(f.index.freeAway), wantHere, wantAway)
		}
		slot := f.index.endpoints[f.index.services[table.Service]]["web-1"]
		if got := f.tags(f.objects.Arrivals, f.objects.Aways); !slices.Equal(got, []uint32{slot}) {
			t.Fatalf("step %d: tags lead to the slots %v, want %d", step, got, slot)
		}
		named, err := names(f.objects.EndpointNames)
		if err != nil || len(named) != 1 {
			t.Fatalf("step %d: %d endpoints have a name, %v; want 1", step, len(named), err)
		}
	}
	if failed < 50 {
		t.Errorf("only %d of 300 calls failed", failed)
	}
	call := func() error { return f.Withdraw(t.Context(), table.Service) }
	_ = f.without("endpoints", call)
	if err := call(); err != nil || len(f.index.free) != here || len(f.index.freeAway) != away {
		t.Errorf("after the withdrawal %d and %d slots are free, %v; want %d and %d",
			len(f.index.free), len(f.index.freeAway), err, here, away)
	}
}

// tags returns the slots to which tags lead.
func (f faulty) tags(of ...*ebpf.Map) (slots []uint32) {
	f.t.Helper()
	for _, m := range of {
		var tag uint64
		var slot uint32
		all := m.Iterate()
		for all.Next(&tag, &slot) {
			slots = append(slots, slot)
		}
		if err := all.Err(); err != nil {
			f.t.Fatal(err)
		}
	}
	return slots
}
