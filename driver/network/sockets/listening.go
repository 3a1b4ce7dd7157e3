package sockets

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Hearing returns the address families by which programs in the network namespace of the calling
// thread accept at ports: those that every port with a listener has. A listener on a loopback
// address does not count.
func Hearing(ports []pando.Port) (pando.Hearing, error) {
	found := map[pando.Port]families{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		for protocol, kind := range map[pando.Protocol]byte{
			pando.TCP: unix.IPPROTO_TCP, pando.UDP: unix.IPPROTO_UDP,
		} {
			var request [56]byte // struct inet_diag_req_v2
			request[0], request[1] = family, kind
			binary.NativeEndian.PutUint32(request[4:], 1<<listen|1<<closed)
			err := each(byFamily, request[:], func(m []byte) error {
				s, err := parse(m)
				at := pando.Port{Protocol: protocol, Target: s.Local.Port()}
				if err == nil && !s.Local.Addr().IsLoopback() {
					f := found[at]
					f.add(m)
					found[at] = f
				}
				return err
			})
			if err != nil {
				return "", err
			}
		}
	}
	all := families{true, true}
	heard := false
	for _, p := range ports {
		if f, ok := found[pando.Port{Protocol: p.Protocol, Target: p.Target}]; ok {
			heard, all = true, families{all.v4 && f.v4, all.v6 && f.v6}
		}
	}
	if !heard {
		return "", nil
	}
	return pando.HearingBy(all.v4, all.v6), nil
}

// The states of sockets that accept: of TCP, and of UDP without a peer.
const (
	closed = 7
	listen = 10
)

// families are those by which a port accepts.
type families struct{ v4, v6 bool }

// onlyIPv6 is the attribute INET_DIAG_SKV6ONLY of a message about a socket.
const onlyIPv6 = 11

// add adds those of a socket, by the kernel's message about it.
func (f *families) add(m []byte) {
	s, err := parse(m)
	switch {
	case err != nil:
	case m[0] == unix.AF_INET, s.Local.Addr().Is4():
		f.v4 = true
	default:
		f.v6 = true
		if s.Local.Addr().IsUnspecified() && !hasFlag(m[messageLen:], onlyIPv6) {
			f.v4 = true
		}
	}
}

// hasFlag reports whether an attribute of one byte is there and set.
func hasFlag(attributes []byte, kind uint16) bool {
	for len(attributes) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(attributes))
		if size < unix.SizeofNlAttr || size > len(attributes) {
			return false
		}
		if binary.NativeEndian.Uint16(attributes[2:]) == kind && size > unix.SizeofNlAttr {
			return attributes[unix.SizeofNlAttr] != 0
		}
		attributes = attributes[min(len(attributes), (size+3)&^3):]
	}
	return false
}
