package ebpf

import (
	"net/netip"
	"testing"
	"time"
)

// A busy client uses the tuples of its ended flows again, each some seconds after its last use. None
// of them holds a drain up for ever. A flow without a pause holds it up as long as it lasts.
func TestStrangersDoNotRenewAUDPFlowThatPaused(t *testing.T) {
	const udp, reuse = 17, 9 * time.Second
	var p pauses
	client := netip.MustParseAddr("192.0.2.1")
	counts := func(now time.Duration) (strangers, steady int) {
		p.begin(now)
		defer p.end()
		for port := range uint16(100) {
			e := entry{protocol: udp, held: true, client: netip.AddrPortFrom(client, port)}
			e.flow.Flags = flowAnswered
			if e.idle = (now + time.Duration(port)*time.Second/11) % reuse; port == 0 {
				e.idle = time.Second
			}
			switch lives := p.look(e, look(e)) == lives; {
			case lives && port == 0:
				steady++
			case lives:
				strangers++
			}
		}
		return strangers, steady
	}
	if strangers, steady := counts(0); strangers != 99 || steady != 1 {
		t.Errorf("at first %d and %d flows hold the drain up, want 99 and 1", strangers, steady)
	}
	for now := time.Duration(0); now < time.Minute; now += 4 * time.Second {
		counts(now)
	}
	if strangers, steady := counts(time.Minute); strangers != 0 || steady != 1 {
		t.Errorf("after a minute %d and %d flows hold the drain up, want 0 and 1", strangers, steady)
	}
	p.begin(time.Hour)
	if p.end(); len(p.began) > 0 {
		t.Errorf("%d flows are remembered after their end", len(p.began))
	}
}
