package ebpf

import (
	"testing"
	"time"

	"pando.run/pando"
)

func TestALookAtAFlow(t *testing.T) {
	const tcp, udp = 6, 17
	for name, c := range map[string]struct {
		protocol uint8
		held     bool
		flags    uint32
		idle     time.Duration
		want     finding
	}{
		"an open connection":                 {tcp, true, flowEstablished, time.Second, lives},
		"a silent connection":                {tcp, true, flowEstablished, time.Minute, suspect},
		"an ended connection":                {tcp, true, flowEstablished | flowFIN, 0, suspect},
		"a reset connection":                 {tcp, false, flowRST, 0, suspect},
		"a handshake":                        {tcp, false, 0, time.Second, lives},
		"an answered handshake":              {tcp, false, flowAnswered, time.Second, lives},
		"an old handshake":                   {tcp, false, 0, 4 * time.Second, suspect},
		"an old answered handshake":          {tcp, false, flowAnswered, 4 * time.Second, suspect},
		"a connection that was found again":  {tcp, false, flowEstablished, time.Second, suspect},
		"a UDP flow":                         {udp, true, flowAnswered, time.Second, lives},
		"a UDP flow that is silent":          {udp, true, flowAnswered, time.Minute, silent},
		"a UDP flow that is silent for long": {udp, true, flowAnswered, 4 * time.Minute, ended},
		"a UDP packet without an answer":     {udp, false, 0, time.Second, lives},
		"an old one":                         {udp, false, flowAnswered, time.Minute, ended},
	} {
		e := entry{protocol: c.protocol, held: c.held, idle: c.idle}
		e.flow.Flags = c.flags
		if got := look(e); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A flow that comes while a sweep reads the table is not evicted, although the sweep did not see it.
func TestAFlowThatComesDuringASweepIsNotEvicted(t *testing.T) {
	d := openFaulty(t)
	add := func() {
		var perCPU []uint64
		if err := d.objects.Counts.Lookup(uint32(countAdded), &perCPU); err != nil {
			t.Fatal(err)
		}
		perCPU[0]++
		if err := d.objects.Counts.Put(uint32(countAdded), perCPU); err != nil {
			t.Fatal(err)
		}
	}
	evicted := func(during func(), present int) int {
		then, _, err := knownTo(d.Driver)
		if err != nil {
			t.Fatal(err)
		}
		during()
		var report pando.SweepReport
		if err := d.forgetAll(nil, nil, then.added, present, &report); err != nil {
			t.Fatal(err)
		}
		return report.Evicted
	}
	if n := evicted(add, 0); n != 0 {
		t.Errorf("with a flow that came during the sweep: %d evicted", n)
	}
	if n := evicted(func() {}, 0); n != 1 {
		t.Errorf("with a flow that is gone: %d evicted, want 1", n)
	}
	if n := evicted(add, 2); n != 1 {
		t.Errorf("the number of evicted flows fell to %d", n)
	}
}
