package flowlet

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// passAll makes a device promiscuous until the socket that it returns is closed. Packets on a wire
// are for its ends, and a physical device passes packets for its own address only.
func passAll(device string, index int) (socket int, err error) {
	socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	all := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
	err = unix.SetsockoptPacketMreq(socket, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &all)
	if err != nil {
		unix.Close(socket)
		return -1, fmt.Errorf("set device %s to promiscuous mode: %w; `ip link set %[1]s promisc on`",
			device, err)
	}
	return socket, nil
}
