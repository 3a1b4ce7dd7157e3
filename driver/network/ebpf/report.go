package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

const (
	// The half of a flow's flags, and of a peer's room, that has the number of a host (bpf/pando.h).
	half = 16
	// A flow that came by another host stays in the table for this long after its last packet. The
	// other host has seen that packet too. It takes a flow seen within bpf/flow.h's SEEN_STEP for a
	// newer one with the same ports, and keeps it.
	reportAfter = 2 * time.Second
	isEnded     = 0x12 // the mark of a message (bpf/tunnel.h)
)

// from returns the number of the host by which a flow came, or 0.
func (e entry) from() uint32 { return e.flow.Flags >> half }

// message is the beginning of struct __sk_buff, up to the last field that a message sets.
type message struct {
	_       [10]uint32
	Ifindex uint32
	_       uint32
	CB      [5]uint32
}

// numbers returns the numbers of the other hosts. The agent of an older build gave them none: 0.
func (t *tunnel) numbers() (map[[4]uint32]uint32, error) {
	out := map[[4]uint32]uint32{}
	var at [4]uint32
	var p steerPeer
	peers := t.objects.Peers.Iterate()
	for peers.Next(&at, &p) {
		out[at] = p.Room >> half
	}
	return out, peers.Err()
}

// unused returns the lowest number that no host has.
func unused(numbers map[[4]uint32]uint32) uint32 {
	used := map[uint32]bool{}
	for _, n := range numbers {
		used[n] = true
	}
	n := uint32(1)
	for used[n] {
		n++
	}
	return n
}

// reportEnds reports the ends of flows to the hosts by which they came. Those hosts see one
// direction of a flow and no socket. After a lost message, awayIdleMax ends the flow there.
func (t *tunnel) reportEnds(x *index, flows []entry) error {
	if len(flows) == 0 || t.ifindex == 0 {
		return nil
	}
	numbers, err := t.numbers()
	if err != nil {
		return fmt.Errorf("read the other hosts: %w", err)
	}
	hosts := map[uint32][4]uint32{}
	for at, n := range numbers {
		hosts[n] = at
	}
	for _, e := range flows {
		to, known := hosts[e.from()]
		name, here := x.names[e.flow.Endpoint]
		if !known || !here {
			continue
		}
		var tag [8]byte
		binary.BigEndian.PutUint64(tag[:], x.tagOf(e.flow.Service, name))
		vni := binary.BigEndian.Uint32(tag[:]) >> 8
		_, err := t.objects.Post.Run(&ebpf.RunOptions{
			Data: e.frame([6]byte{isEnded, tag[3], tag[4], tag[5], tag[6], tag[7]}), Repeat: 1,
			Context: &message{Ifindex: uint32(t.ifindex), CB: [5]uint32{to[0], to[1], to[2], to[3],
				vni}},
		})
		if errors.Is(err, unix.ENODEV) {
			return nil // Mend makes the tunnel again
		}
		if err != nil {
			return fmt.Errorf("report the end of a flow to %s: %w", address6(to), err)
		}
	}
	return nil
}

// frame returns a packet of a TCP flow's client without data, in a frame to this address.
func (e entry) frame(to [6]byte) []byte {
	const header4, header6, headerTCP = 20, 40, 20
	client, vip := e.client.Addr().AsSlice(), e.vip.Addr().AsSlice()
	p := append(to[:], tunnelSource[:]...)
	if e.client.Addr().Is4() {
		ip := [header4]byte{0: 0x45, 3: header4 + headerTCP, 8: 1, 9: e.protocol}
		copy(ip[12:], client)
		copy(ip[16:], vip)
		p = append(append(p, 0x08, 0x00), ip[:]...)
	} else {
		ip := [header6]byte{0: 0x60, 5: headerTCP, 6: e.protocol, 7: 1}
		copy(ip[8:], client)
		copy(ip[24:], vip)
		p = append(append(p, 0x86, 0xdd), ip[:]...)
	}
	tcp := [headerTCP]byte{12: headerTCP / 4 << 4}
	binary.BigEndian.PutUint16(tcp[:], e.client.Port())
	binary.BigEndian.PutUint16(tcp[2:], e.vip.Port())
	return append(p, tcp[:]...)
}

// reports returns whether another host receives a report about the end of a flow.
func (e entry) reports() bool { return e.from() != 0 && e.protocol == protocols[pando.TCP] }
