package ebpf

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// Hook is where a program sits.
type Hook string

const (
	FromOutside  Hook = "from_outside"  // ingress of an uplink
	FromHost     Hook = "from_host"     // egress of pando0
	FromInstance Hook = "from_instance" // ingress of an instance's link, at the host's end
	Nothing      Hook = "nothing"       // no hook: the program that measurements are held against
)

// What a program decides (linux/bpf.h, enum tcx_action_base).
const (
	ActionNext     = ^uint32(0)
	ActionDrop     = 2
	ActionRedirect = 7
)

// A checksum that the network card has summed up must be right afterwards, too (BPF_F_TEST_SKB_CHECKSUM_COMPLETE).
const testChecksumComplete = 1 << 2

// trial is the beginning of struct __sk_buff, as far as a trial sets it.
type trial struct {
	_       [10]uint32
	Ifindex uint32
}

func (d *Driver) program(at Hook) (*ebpf.Program, error) {
	switch at {
	case FromOutside:
		return d.objects.FromOutside, nil
	case FromHost:
		return d.objects.FromHost, nil
	case FromInstance:
		return d.objects.FromInstance, nil
	case Nothing:
		return d.objects.Nothing, nil
	}
	return nil, fmt.Errorf("there is no hook %q", at)
}

// Try runs one packet through the program of a hook, as if it came in at a device, with the tables as they are. It returns
// what the program decided and the packet as it left it; nothing is sent (BPF_PROG_TEST_RUN). With summed, the network card is
// taken to have summed up the packet, and it is an error if that sum is wrong afterwards; the kernel cannot tell that of a
// packet whose length has changed.
func (d *Driver) Try(at Hook, ifindex int, packet []byte, summed bool) (action uint32, out []byte, err error) {
	p, err := d.program(at)
	if err != nil {
		return 0, nil, err
	}
	o := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: &trial{Ifindex: uint32(ifindex)}, Repeat: 1}
	if summed {
		o.Flags = testChecksumComplete
	}
	action, err = p.Run(&o)
	if err != nil {
		return 0, nil, fmt.Errorf("try a packet at %s: %w", at, err)
	}
	return action, o.DataOut, nil
}

// Measure runs one packet many times, without a device, and returns the mean time that the program took.
func (d *Driver) Measure(at Hook, packet []byte, times int) (action uint32, each time.Duration, err error) {
	p, err := d.program(at)
	if err != nil {
		return 0, 0, err
	}
	action, each, err = p.Benchmark(packet, times, nil)
	if err != nil {
		err = fmt.Errorf("measure a packet at %s: %w", at, err)
	}
	return action, each, err
}
