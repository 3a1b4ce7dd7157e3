package ebpf

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// A tracked flow counts as the socket that an instance would have, until it is closed.
func TestATrackedFlowIsAConnection(t *testing.T) {
	for state, want := range map[uint8]struct{ established, open bool }{
		1: {false, true}, 2: {false, true}, 3: {true, true}, 4: {true, true}, 5: {true, true},
		6: {true, true}, 7: {}, 8: {}, 0: {},
	} {
		f := &netlink.ConntrackFlow{ProtoInfo: &netlink.ProtoInfoTCP{State: state}}
		f.Forward.Protocol = 6
		f.Forward.SrcIP, f.Forward.SrcPort = net.IPv4(192, 0, 2, 9), 4000
		f.Forward.DstIP, f.Forward.DstPort = net.IPv4(10, 127, 0, 2), 8080
		c, established, open := translatedFlow(f)
		if open != want.open || open && established != want.established {
			t.Errorf("state %d: established %v, open %v", state, established, open)
		}
		if c.client.String() != "192.0.2.9:4000" || c.local.String() != "10.127.0.2:8080" {
			t.Errorf("it is %+v", c)
		}
	}
	f := &netlink.ConntrackFlow{}
	f.Forward.Protocol = 17
	if _, established, open := translatedFlow(f); !established || !open {
		t.Error("a tracked flow of UDP does not count")
	}
	f.Forward.Protocol = 1
	if _, _, open := translatedFlow(f); open {
		t.Error("an echo request counts")
	}
}
