// Package sockets lists the sockets of a network namespace by the kernel's sock_diag.
//
// The kernel walks its whole table of connections for each list of TCP sockets, however few a
// namespace has: 3 ms at 262,144 buckets. So a list has both address families in one walk.
package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// State is the state of a TCP socket, as in the kernel's net/tcp_states.h.
type State uint8

// The states of open connections.
const (
	Established State = 1
	SynRecv     State = 3
	FinWait1    State = 4
	FinWait2    State = 5
	CloseWait   State = 8
	LastAck     State = 9
	Closing     State = 11
	NewSynRecv  State = 12
)

// open is the mask of the states in which a socket may still send or receive.
const open = 1<<Established | 1<<SynRecv | 1<<FinWait1 | 1<<FinWait2 | 1<<CloseWait | 1<<LastAck |
	1<<Closing | 1<<NewSynRecv

// Socket is one socket with its two ends. An IPv4 address is never in its IPv6 form.
type Socket struct {
	State         State
	Local, Remote netip.AddrPort
}

// Accepted reports whether the handshake is done.
func (s Socket) Accepted() bool { return s.State != SynRecv && s.State != NewSynRecv }

// Requests of the kernel's linux/inet_diag.h and linux/sock_diag.h.
const (
	tcpOfBothFamilies = 18 // TCPDIAG_GETSOCK, the only request that names no family
	byFamily          = 20 // SOCK_DIAG_BY_FAMILY
)

// TCP lists the open TCP connections in the network namespace of the calling thread. A connection that
// both programs have closed is over once the client has all data. The kernel keeps it for minutes if
// the client's machine is gone and never acknowledges the end.
func TCP() ([]Socket, error) {
	var request [60]byte // struct inet_diag_req
	binary.NativeEndian.PutUint32(request[52:], open)
	return list(tcpOfBothFamilies, request[:])
}

// UDP lists the UDP sockets with a peer in the network namespace of the calling thread.
func UDP() ([]Socket, error) {
	var out []Socket
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var request [56]byte // struct inet_diag_req_v2
		request[0], request[1] = family, unix.IPPROTO_UDP
		binary.NativeEndian.PutUint32(request[4:], 1<<Established) // so the kernel calls them
		found, err := list(byFamily, request[:])
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

func list(kind int, request []byte) (out []Socket, err error) {
	err = each(kind, request, func(message []byte) error {
		s, err := parse(message)
		if err != nil || !over(message) {
			out = append(out, s)
		}
		return err
	})
	return out, err
}

// unsentAt is the offset of the bytes without an acknowledgement in struct inet_diag_msg.
const unsentAt = 60

// over reports whether only the acknowledgement of this side's end is missing: the end takes the place
// of one byte.
func over(m []byte) bool {
	s := State(m[1])
	return (s == LastAck || s == Closing) && binary.NativeEndian.Uint32(m[unsentAt:]) <= 1
}

// each calls f with each message of a list, until an error.
func each(kind int, request []byte, f func([]byte) error) error {
	r := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
	r.AddRawData(request)
	var bad error
	err := r.ExecuteIter(unix.NETLINK_INET_DIAG, uint16(kind), func(message []byte) bool {
		bad = f(message)
		return bad == nil
	})
	return errors.Join(err, bad)
}

// messageLen is the length of struct inet_diag_msg.
const messageLen = 72

var errShort = errors.New("the kernel's message about a socket is too short")

// parse reads a struct inet_diag_msg.
func parse(m []byte) (Socket, error) {
	if len(m) < messageLen {
		return Socket{}, fmt.Errorf("%w: %d bytes", errShort, len(m))
	}
	end := func(address, port []byte) netip.AddrPort {
		a := netip.AddrFrom16([16]byte(address))
		if m[0] == unix.AF_INET {
			a = netip.AddrFrom4([4]byte(address))
		}
		return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(port))
	}
	return Socket{State(m[1]), end(m[8:24], m[4:6]), end(m[24:40], m[6:8])}, nil
}
