package pando

import (
	"fmt"
	"net/netip"
	"time"
)

// Host is the record of a machine that runs the agent. It lives as long as the agent's lease. The
// first write of each agent is its epoch. Once a newer agent of the same host has joined, every
// write of the older one fails with ErrFenced.
type Host struct {
	Name       HostName     `json:"name"`
	Slot       int          `json:"slot"`     // unique, kept for life; chooses the host's addresses
	Address    netip.Addr   `json:"address"`  // other hosts and clients reach it here
	Address6   netip.Addr   `json:"address6"` // the same by IPv6; zero: IPv4 only
	Endpoint   string       `json:"endpoint"` // of its agent: unix:///PATH or http://HOST:PORT
	CPUs       float64      `json:"cpus"`
	Memory     int64        `json:"memory_bytes"`
	PIDs       int64        `json:"pids"`       // process ids that it can have; 0: unknown
	Instances4 netip.Prefix `json:"instances4"` // addresses of its instances
	Instances6 netip.Prefix `json:"instances6"`
	Joined     time.Time    `json:"joined"`
	Version    string       `json:"version"`
	Leaving    bool         `json:"leaving,omitempty"` // no new instances; those it has are moved away
}

// Check returns nil if the record can be a host's, else the reason. The slot chooses the addresses
// of the host's instances, and other hosts route packets to them.
func (h Host) Check() error {
	v4, v6 := InstanceRange(h.Slot)
	switch {
	case h.Slot < 0 || h.Slot >= HostSlots:
		return fmt.Errorf("%w: host %s is in slot %d: want 0 to %d", ErrInvalid, h.Name, h.Slot, HostSlots-1)
	case h.Instances4 != v4 && h.Instances4.IsValid(), h.Instances6 != v6 && h.Instances6.IsValid():
		return fmt.Errorf("%w: host %s claims %s and %s for its instances: slot %d has %s and %s",
			ErrInvalid, h.Name, h.Instances4, h.Instances6, h.Slot, v4, v6)
	}
	return nil
}

// Addresses of the cluster. Every host answers for every VIP. Each host has its own range for
// instances.
var (
	VIPs4 = netip.MustParsePrefix("10.127.0.0/16")
	VIPs6 = netip.MustParsePrefix("fd70:616e:646f:ffff::/64")
	// Gateway is an address of every host's pando0. DNS answers there. It is also the source of
	// packets to a VIP from a host without an address of its own.
	Gateway4 = netip.MustParseAddr("10.127.0.1")
	Gateway6 = netip.MustParseAddr("fd70:616e:646f:ffff::1")
)

// HostLease is how long a host's record outlives its agent.
const HostLease = 8 * time.Second

// HostSlots is the largest number of hosts in a cluster.
const HostSlots = 1024

// InstanceRange returns the address ranges for instances of the host in this slot: a /20 and a /96.
func InstanceRange(slot int) (v4, v6 netip.Prefix) {
	n := uint32(slot) << 12
	v4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 | byte(n>>16), byte(n >> 8), byte(n)}), 20)
	a := netip.MustParseAddr("fd70:616e:646f::").As16()
	a[6], a[7], a[8], a[9] = 0, 1, byte(slot>>8), byte(slot)
	return v4, netip.PrefixFrom(netip.AddrFrom16(a), 96)
}
