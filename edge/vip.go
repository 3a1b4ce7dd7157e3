// Package edge holds the words of the way in: the shares of VIPs, their holders and announcers, and the
// verdicts about hosts that others reach.
package edge

import (
	"context"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"pando.run/pando"
	"strconv"
	"strings"
)

// VIPShares is the number of parts into which the VIPs fall. Hosts of one network share the work of
// answering for VIPs by these parts.
const VIPShares = 256

// VIPShare returns the share of a VIP: its last byte, the same for both of a service's VIPs.
func VIPShare(vip netip.Addr) int {
	b := vip.AsSlice()
	return int(b[len(b)-1])
}

// Shares is a set of shares of the VIPs.
type Shares [VIPShares / 64]uint64

// Has reports whether the set has a share.
func (s Shares) Has(n int) bool { return s[n/64]&(1<<(n%64)) != 0 }

// Add adds a share.
func (s *Shares) Add(n int) { s[n/64] |= 1 << (n % 64) }

// Len returns the number of shares.
func (s Shares) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// And returns the shares that both sets have.
func (s Shares) And(o Shares) Shares {
	for n := range s {
		s[n] &= o[n]
	}
	return s
}

// Or returns the shares that a set has.
func (s Shares) Or(o Shares) Shares {
	for n := range s {
		s[n] |= o[n]
	}
	return s
}

// Less returns the shares that the other set lacks.
func (s Shares) Less(o Shares) Shares {
	for n := range s {
		s[n] &^= o[n]
	}
	return s
}

// String returns the shares as hexadecimal digits, or "" for none. ParseShares reads them.
func (s Shares) String() string {
	if s.Len() == 0 {
		return ""
	}
	var b strings.Builder
	for _, word := range s {
		fmt.Fprintf(&b, "%016x", word)
	}
	return b.String()
}

// ParseShares reads the text of Shares.String.
func ParseShares(text string) (s Shares, err error) {
	if text == "" {
		return s, nil
	}
	if len(text) != 16*len(s) {
		return s, fmt.Errorf("%w: %d digits are no shares of VIPs", pando.ErrInvalid, len(text))
	}
	for n := range s {
		if s[n], err = strconv.ParseUint(text[16*n:16*n+16], 16, 64); err != nil {
			return s, fmt.Errorf("%w: shares of VIPs: %w", pando.ErrInvalid, err)
		}
	}
	return s, nil
}

// All returns the shares in order.
func (s Shares) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for n := range VIPShares {
			if s.Has(n) && !yield(n) {
				return
			}
		}
	}
}

// OpenFlow is one flow of an instance.
type OpenFlow struct {
	Client   netip.AddrPort `json:"c"`
	VIP      netip.AddrPort `json:"v"` // with the published port
	Protocol pando.Protocol `json:"p"`
	// Proven: the client has acknowledged the instance's answer.
	Proven bool `json:"e,omitempty"`
}

// InstanceFlows are the flows of one instance.
type InstanceFlows struct {
	Service  pando.ServiceKey `json:"service"`
	Instance pando.InstanceID `json:"instance"`
	Flows    []OpenFlow       `json:"flows"`
}

// OpenFlowsMax bounds the flows that one host reports at once. A busier host reports this many, and
// packets of the others look for their flow as they do after a change of the ingress.
const OpenFlowsMax = 1 << 18

// FlowBook reads and fills the connection table of a host. driver/network/ebpf implements it.
type FlowBook interface {
	// OpenFlows returns the flows of this host's instances to VIPs of some shares, at most
	// OpenFlowsMax.
	OpenFlows(ctx context.Context, s Shares) ([]InstanceFlows, error)
	// LearnFlows adds flows of instances on other hosts. A flow that the table has already stays. It
	// returns the number of new flows.
	LearnFlows(ctx context.Context, all []InstanceFlows) (int, error)
}

// VIPTake asks another host to leave VIPs to the asker, and for the flows of its instances.
type VIPTake struct {
	Host    pando.HostName `json:"host"`    // the asker; the receiver sets it by the certificate
	Segment string         `json:"segment"` // see Host.Segment
	Shares  Shares         `json:"shares"`
	// Offers: Host has these shares, and its view gives them to the receiver. It leaves them when the
	// receiver takes them, also if the receiver has them already.
	Offers bool                `json:"offers,omitempty"`
	At     pando.StoreRevision `json:"at"` // the newest that the asker has seen
	// Gone: at that revision the receiver has no lease.
	Gone bool `json:"gone,omitempty"`
}

// VIPGrant is the answer to a VIPTake.
type VIPGrant struct {
	Refused Shares          `json:"refused"` // the receiver itself is their holder
	Flows   []InstanceFlows `json:"flows,omitempty"`
}

// VIPPeers carries takes to other hosts. driver/cluster/peer implements it.
type VIPPeers interface {
	// TakeVIPs asks a host. ErrNotFound: its build answers for no VIPs.
	TakeVIPs(ctx context.Context, h pando.Host, t VIPTake) (VIPGrant, error)
}

// VIPHolder is the answering side of VIPPeers. The agent implements it.
type VIPHolder interface {
	// GrantVIPs stops to answer for the VIPs of a take, unless this host is their holder.
	GrantVIPs(ctx context.Context, t VIPTake) (VIPGrant, error)
}

// Announcer answers for VIPs on the networks of this host. driver/network/arp implements it by ARP and
// neighbour discovery.
type Announcer interface {
	// Serve answers each request for an address that answers accepts, until ctx ends.
	Serve(ctx context.Context, answers func(netip.Addr) bool) error
	// Announce replaces older owners of these VIPs in the tables of the networks' machines.
	Announce(vips []netip.Addr) error
}
