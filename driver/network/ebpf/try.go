package ebpf

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// Hook is the place of a program.
type Hook string

const (
	FromOutside  Hook = "from_outside"  // ingress of an uplink
	FromHost     Hook = "from_host"     // egress of pando0
	FromInstance Hook = "from_instance" // ingress of an instance's link, at the host's end
	FromTunnel   Hook = "from_tunnel"   // ingress of the tunnel
	Nothing      Hook = "nothing"       // no hook: the baseline program of measurements
)

// The decisions of a program (linux/bpf.h, enum tcx_action_base).
const (
	ActionNext     = ^uint32(0)
	ActionDrop     = 2
	ActionRedirect = 7
)

// testChecksumComplete makes a trial check the network card's checksum
// (BPF_F_TEST_SKB_CHECKSUM_COMPLETE).
const testChecksumComplete = 1 << 2

// trial is the beginning of struct __sk_buff, up to the field that a trial sets.
type trial struct {
	_       [10]uint32
	Ifindex uint32
}

// Try runs one packet through the program of a hook with the current tables, as if it came in at a
// device. It returns the program's decision and the resulting packet; nothing is sent
// (BPF_PROG_TEST_RUN). With summed, the packet counts as summed by the network card, and a wrong
// sum afterwards is an error. The kernel cannot check that for a packet of changed length.
func (d *Driver) Try(at Hook, ifindex int, packet []byte, summed bool) (action uint32, out []byte,
	err error) {
	p, err := d.hooks.program(at)
	if err != nil {
		return 0, nil, err
	}
	o := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256),
		Context: &trial{Ifindex: uint32(ifindex)}, Repeat: 1}
	if summed {
		o.Flags = testChecksumComplete
	}
	action, err = p.Run(&o)
	if err != nil {
		return 0, nil, fmt.Errorf("try a packet at %s: %w", at, err)
	}
	return action, o.DataOut, nil
}

// Measure runs one packet many times, without a device, and returns the mean time of the program.
func (d *Driver) Measure(at Hook, packet []byte, times int) (action uint32, each time.Duration,
	err error) {
	p, err := d.hooks.program(at)
	if err != nil {
		return 0, 0, err
	}
	action, each, err = p.Benchmark(packet, times, nil)
	if err != nil {
		err = fmt.Errorf("measure a packet at %s: %w", at, err)
	}
	return action, each, err
}
