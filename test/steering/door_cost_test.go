package steering

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// runsOf returns the runs of the program behind a pinned link of a host, and the time they took.
func runsOf(t *testing.T, h *host, pin string) (runs uint64, took time.Duration) {
	t.Helper()
	l, err := link.LoadPinnedLink(filepath.Join(pins+h.name(), "links", pin), nil)
	check(t, err)
	defer l.Close()
	info, err := l.Info()
	check(t, err)
	p, err := ebpf.NewProgramFromID(info.Program)
	check(t, err)
	defer p.Close()
	stats, err := p.Stats()
	check(t, err)
	return stats.RunCount, stats.Runtime
}

// TestAFloodOfForgedPacketsIsBounded sends packets of no flow to the first of three hosts. Each
// costs a question to the two others and an answer of each, and nothing more: no packet goes round.
// A packet of a known flow takes none of these ways.
func TestAFloodOfForgedPacketsIsBounded(t *testing.T) {
	e := newEstate(t, openOne, 3, 0)
	for slot := range e.hosts {
		e.join(slot, string(rune('a'+slot)), 100)
	}
	e.publish()
	off, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	check(t, err)
	defer off.Close()
	const forged = 2000
	l := e.outside.Link
	flood := make([][]byte, forged)
	for n := range flood {
		from := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
		flood[n] = tcp(at(from, 4000), at(vip[0], 80), "A").Bytes(l.MAC, l.HostMAC)
	}
	// The program of the uplinks also sees the packets of the tunnel: two answers to each forged one.
	pinsOf := []string{"uplink-out", "tunnel", "tunnel", "tunnel"}
	hosts := append(e.hosts[:1:1], e.hosts...)
	var before [4]uint64
	var spent [4]time.Duration
	for n, h := range hosts {
		before[n], spent[n] = runsOf(t, h, pinsOf[n])
	}
	begin := time.Now()
	for n := 0; n < forged; n += 100 {
		emit(t, e.outside, flood[n:n+100]...)
		eventually(t, "the answers have come", func() bool {
			runs, _ := runsOf(t, e.hosts[0], "tunnel")
			return runs-before[1] >= 2*uint64(n+100)
		})
	}
	for n, want := range []uint64{3 * forged, 2 * forged, forged, forged} {
		runs, took := runsOf(t, hosts[n], pinsOf[n])
		runs -= before[n]
		took -= spent[n]
		t.Logf("%s of %s: %d runs, %d ns each", pinsOf[n], hosts[n].name(), runs,
			took.Nanoseconds()/int64(runs))
		if runs < want || runs > want+20 { // with the chatter of the boxes
			t.Errorf("%s of %s ran %d times for %d forged packets, want %d", pinsOf[n], hosts[n].name(),
				runs, forged, want)
		}
	}
	t.Logf("%d forged packets in %s", forged, time.Since(begin))
}
