package pando

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// frontBits are the bits of an IPv4 VIP that are the same for all fronts.
const frontBits = 22

// Front returns the fronts of the host in this slot. A front is a VIP that stands for the host's
// own address while a packet is steered. The instances take packets to it and reply from it. The
// host that sends a reply out puts the own address in its place.
func Front(slot int) (v4, v6 netip.Addr) {
	four, six := Fronts()
	a4, a6 := four.As4(), six.As16()
	binary.BigEndian.PutUint32(a4[:], binary.BigEndian.Uint32(a4[:])+uint32(slot))
	binary.BigEndian.PutUint32(a6[12:], uint32(slot))
	return netip.AddrFrom4(a4), netip.AddrFrom16(a6)
}

// Fronts returns the first front of each family. No service has a VIP among the fronts.
func Fronts() (v4, v6 netip.Addr) {
	a4, a6 := VIPs4.Addr().As4(), VIPs6.Addr().As16()
	a4[2], a6[11] = 0xfc, 1
	return netip.AddrFrom4(a4), netip.AddrFrom16(a6)
}

// FrontRanges returns the ranges of all fronts.
func FrontRanges() (v4, v6 netip.Prefix) {
	four, six := Fronts()
	return netip.PrefixFrom(four, frontBits), netip.PrefixFrom(six, 96)
}

// IsFront reports whether an address is the front of a host.
func IsFront(a netip.Addr) bool {
	four, six := FrontRanges()
	return four.Contains(a) || six.Contains(a)
}

// HostPort is a port of the hosts' own addresses at which a service is published.
type HostPort struct {
	Port     uint16
	Protocol Protocol
}

// String returns PORT/PROTOCOL.
func (p HostPort) String() string { return fmt.Sprintf("%d/%s", p.Port, p.Protocol) }

// HostPorts returns the ports of hosts among the ports of a spec.
func HostPorts(ports []Port) (out []HostPort) {
	for _, p := range ports {
		if p.Host != 0 {
			out = append(out, HostPort{p.Host, p.Protocol})
		}
	}
	return out
}

// TakenError is the error of a port of a host that belongs to another program or service. The rest
// of the service's steering is in force.
type TakenError struct {
	Port  HostPort
	Owner string // the program or the service
}

// Error implements error.
func (e *TakenError) Error() string {
	return fmt.Sprintf("port %s of this host belongs to %s: end that program, or publish another port",
		e.Port, e.Owner)
}

// Unwrap returns ErrConflict.
func (e *TakenError) Unwrap() error { return ErrConflict }
