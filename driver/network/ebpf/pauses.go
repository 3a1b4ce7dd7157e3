package ebpf

import (
	"net/netip"
	"time"

	"pando.run/pando"
)

// udpPauseMax is the longest pause of a UDP flow that holds a drain up. After a longer one, the next
// packet may be a stranger's: a busy client uses its ports again within seconds.
const udpPauseMax = 5 * time.Second

// pauses remembers the UDP flows of draining endpoints that paused. Such a flow keeps its endpoint,
// and holds the drain up until udpIdleMax after its pause began, whatever comes later. Only sweeps
// use it, one at a time.
type pauses struct {
	began map[pausedFlow]time.Duration // on the monotonic clock
	next  map[pausedFlow]time.Duration // those that this sweep has seen
	now   time.Duration
}

// pausedFlow is a flow of one endpoint.
type pausedFlow struct {
	client, vip netip.AddrPort
	slot, epoch uint32
}

// begin starts a sweep. Flows that it does not see are forgotten.
func (p *pauses) begin(now time.Duration) {
	p.now, p.next = now, map[pausedFlow]time.Duration{}
}

// end ends a sweep.
func (p *pauses) end() { p.began, p.next = p.next, nil }

// look changes the finding about a flow of a draining endpoint that paused for too long.
func (p *pauses) look(e entry, found finding) finding {
	if e.protocol != protocols[pando.UDP] || found == ended {
		return found
	}
	k := pausedFlow{e.client, e.vip, e.flow.Endpoint, e.flow.Epoch}
	began, paused := p.began[k]
	if !paused && e.idle > udpPauseMax {
		began, paused = p.now-e.idle, true
	}
	if !paused {
		return found
	}
	p.next[k] = began
	if p.now-began > udpIdleMax && found == lives {
		return silent
	}
	return found
}
