package ebpf

import (
	"testing"
	"time"
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
