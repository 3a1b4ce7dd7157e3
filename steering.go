package pando

import (
	"context"
	"net/netip"
	"time"
)

// Steering sends packets for a VIP to instances and their replies back. driver/ebpf implements it with tcx programs
// that need no process; the conformance table in test/steering holds any other driver to the same behaviour.
type Steering interface {
	// Publish makes one service be steered as the table says, for new flows at once (it has taken effect when Publish
	// returns). Established flows stay with their endpoint as long as it is in the table, whatever its weight. An endpoint
	// that is no longer in the table loses its flows.
	Publish(ctx context.Context, t SteeringTable) error
	// Neighbours are the other hosts of the cluster: packets to their instances find their way there.
	Neighbours(ctx context.Context, hosts []Host) error
	// Withdraw forgets a service.
	Withdraw(ctx context.Context, s ServiceKey) error
	// Published lists the services that are steered, also by a former agent of this host.
	Published(ctx context.Context) ([]ServiceKey, error)
	// Connect attaches an instance's veth: replies leave with the VIP as their source, and packets whose source address or
	// MAC is not the instance's own are dropped and counted.
	Connect(ctx context.Context, l Link, ports []Port, vip4, vip6 netip.Addr) error
	Disconnect(ctx context.Context, l Link) error
	// Sweep drops table entries whose flow is over (FIN, RST or idle, and no socket of the instance has it) and returns
	// how many flows each instance still has. A handshake counts as a flow in its first seconds only.
	Sweep(ctx context.Context) (SweepReport, error)
	// Counters since birth, per endpoint.
	Counters(ctx context.Context) ([]EndpointCounters, error)
	// Drops since birth, by reason. No packet is dropped without being counted.
	Drops(ctx context.Context) (Drops, error)
}

// SteeringTable is how one service is steered on one host.
type SteeringTable struct {
	Service    ServiceKey
	VIP4, VIP6 netip.Addr
	Ports      []Port     // what is published; an instance's targets are those of its Connect
	Endpoints  []Endpoint // at most EndpointsMax
	// Via are the addresses of the host that serves it while no endpoint here takes new flows: what is of no flow here goes on
	// to there, as it is. Zero: nobody else does, or it is not reached by this family.
	Via4, Via6 netip.Addr
}

// ServicesMax of a cluster: every host steers every service, and its tables have this many places
// (SERVICES_MAX in bpf/pando.h).
const ServicesMax = 256

// EndpointsMax of one service.
const EndpointsMax = 1024

// Endpoint is where flows go.
type Endpoint struct {
	Instance InstanceID
	Revision int
	Weight   int // share of new flows; 0 drains: what it has stays, nothing new comes
	Soon     int // the weight that it is about to get; 0: nobody knows. What that takes may be done ahead, and changes nothing
	Link     Link
}

// SweepReport is what a sweep found.
type SweepReport struct {
	Flows   map[InstanceID]int // still in the table
	Closed  int                // entries dropped
	Evicted int                // flows that a full table gave up since it was made: the longest unused first
}

// DropReason says why a packet was dropped.
type DropReason string

const (
	DroppedSpoofed    DropReason = "spoofed"     // an instance sent what is not its own
	DroppedChatter    DropReason = "chatter"     // an instance's link-local chatter, which nobody needs
	DroppedFragment   DropReason = "fragment"    // its first fragment was not seen
	DroppedHeader     DropReason = "header"      // cut short, or an extension that cannot be read
	DroppedProtocol   DropReason = "protocol"    // to a VIP, and neither TCP, UDP, an echo nor an error
	DroppedNoService  DropReason = "no_service"  // a VIP:port that nobody serves
	DroppedNoEndpoint DropReason = "no_endpoint" // nobody in rotation, or the flow's endpoint is gone
	DroppedNoFlow     DropReason = "no_flow"     // not the first packet of a flow, and no flow known
	DroppedKernel     DropReason = "kernel"      // the kernel could not change the packet as needed
)

// Drops counts packets that went nowhere.
type Drops struct {
	Packets  map[DropReason]uint64
	Answered uint64 // of them, those whose sender was told: RST, or ICMP "port unreachable"
}

// Losses are what the steering of one host has not carried since its birth.
type Losses struct {
	Dropped  map[DropReason]uint64 `json:"dropped"`  // packets, by reason; a reason that has not occurred is left out
	Answered uint64                `json:"answered"` // of them, those whose sender was told
	Evicted  int                   `json:"evicted"`  // flows that a full connection table gave up
}

// EndpointCounters are totals since the endpoint was published.
type EndpointCounters struct {
	Service  ServiceKey `json:"service"`
	Instance InstanceID `json:"instance"`
	Flows    uint64     `json:"flows"` // new flows steered to it
	Packets  uint64     `json:"packets"`
	Bytes    uint64     `json:"bytes"`
	At       time.Time  `json:"at"`
}
