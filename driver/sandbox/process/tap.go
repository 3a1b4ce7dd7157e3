package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
)

// tap keeps the packets that come to a sandbox, in the buffer of a socket. Each has the kernel's
// header about its checksum and its segments (PACKET_VNET_HDR).
type tap struct{ fd int }

// vnetHeaderBytes is the size of that header, and packetBytesMax that of the largest packet.
const (
	vnetHeaderBytes = 10
	packetBytesMax  = vnetHeaderBytes + 18 + 1<<16
)

// openTap opens a tap on a device of the network namespace of this thread.
func openTap(device string, bufferBytes int) (*tap, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", device, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keep packets of %s: %w", device, err)
	}
	t := &tap{fd}
	err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	if err == nil && bufferBytes > 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes)
	}
	protocol := uint16(0) // it receives nothing
	if bufferBytes > 0 {
		protocol = binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep packets of %s: %w", device, err), t.close())
	}
	return t, nil
}

// take returns the packets that have come, and forgets them.
func (t *tap) take() (all [][]byte) {
	if t == nil {
		return nil
	}
	b := make([]byte, packetBytesMax)
	for {
		n, from, err := unix.Recvfrom(t.fd, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return all
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_HOST {
			all = append(all, append([]byte(nil), b[:n]...))
		}
	}
}

// dropped returns how many packets had no room since its last call.
func (t *tap) dropped() uint32 {
	if t == nil {
		return 0
	}
	n, err := unix.GetsockoptTpacketStats(t.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0
	}
	return n.Drops
}

func (t *tap) close() error {
	if t == nil {
		return nil
	}
	return unix.Close(t.fd)
}

// watchPackets keeps the packets that come to the sandbox from now on.
func (b *sandbox) watchPackets() error {
	b.taps.Lock()
	defer b.taps.Unlock()
	_ = b.tap.close() // of an earlier attempt
	return netspace.At(b.slot.netns(), func() (err error) {
		b.tap, err = openTap("eth0", pando.PacketBytesMax)
		return err
	})
}

// untap ends the tap and returns the packets in it.
func (b *sandbox) untap() [][]byte {
	b.taps.Lock()
	defer b.taps.Unlock()
	all := b.takePackets()
	_ = b.tap.close()
	b.tap = nil
	return all
}

// takePackets takes the packets of the tap, and reports those that had no room. The caller holds
// the lock of the tap.
func (b *sandbox) takePackets() [][]byte {
	all := b.tap.take()
	if n := b.tap.dropped(); n > 0 {
		b.d.Log.Warn("packets for a stopped program exceed their room; their senders repeat them",
			"instance", b.slot.Instance, "packets", n, "bytes", pando.PacketBytesMax)
	}
	return all
}

// Packets implements pando.Sandbox.
func (b *sandbox) Packets() [][]byte {
	b.taps.Lock()
	defer b.taps.Unlock()
	return b.takePackets()
}

// Deliver implements pando.Sandbox. The packets of another sandbox get the address of this one.
func (b *sandbox) Deliver(packets [][]byte) error {
	if len(packets) == 0 {
		return nil
	}
	t, err := openTap(b.slot.Link, 0)
	if err != nil {
		return err
	}
	defer t.close()
	l := b.slot.link()
	for _, p := range packets {
		if len(p) < vnetHeaderBytes+14 {
			continue
		}
		copy(p[vnetHeaderBytes:], l.MAC)
		copy(p[vnetHeaderBytes+6:], l.HostMAC)
		if _, err := unix.Write(t.fd, p); err != nil {
			return fmt.Errorf("deliver a packet of %d bytes to %s: %w", len(p), b.slot.Instance, err)
		}
	}
	return nil
}
