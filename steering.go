package pando

import (
	"context"
	"net/netip"
	"time"
)

// Steering sends packets for a VIP to instances, and their replies back. driver/ebpf implements it
// with tcx programs that need no process. The conformance table in test/steering holds any other
// driver to the same behaviour.
type Steering interface {
	// Publish steers one service by the table. It has taken effect for new flows when it returns.
	// Established flows stay with their endpoint as long as the table has it, at any weight. An
	// endpoint that left the table loses its flows.
	Publish(ctx context.Context, t SteeringTable) error
	// Neighbours sets the other hosts of the cluster, so that packets reach their instances.
	Neighbours(ctx context.Context, hosts []Host) error
	// Withdraw stops steering a service.
	Withdraw(ctx context.Context, s ServiceKey) error
	// Published lists the steered services, including those of a former agent of this host.
	Published(ctx context.Context) ([]ServiceKey, error)
	// Connect attaches an instance's veth. Replies leave with the VIP as their source. Packets from
	// a source address or MAC other than the instance's own are dropped and counted.
	Connect(ctx context.Context, l Link, ports []Port, vip4, vip6 netip.Addr) error
	// Disconnect detaches an instance's veth.
	Disconnect(ctx context.Context, l Link) error
	// Sweep drops table entries of ended flows: FIN, RST or idle, and no socket of the instance has
	// it. It returns the number of remaining flows per instance. A handshake counts as a flow in
	// its first seconds only.
	Sweep(ctx context.Context) (SweepReport, error)
	// Ends returns a count that grows when a flow of an endpoint ends visibly: a FIN or RST of either
	// side. It costs next to nothing. 0: the endpoint is not known, or none has ended.
	Ends(ctx context.Context, s ServiceKey, i InstanceID) (uint64, error)
	// Counters returns the counters of each endpoint since birth.
	Counters(ctx context.Context) ([]EndpointCounters, error)
	// Drops returns the drops since birth, by reason. No packet is dropped without being counted.
	Drops(ctx context.Context) (Drops, error)
}

// SteeringTable describes the steering of one service on one host.
type SteeringTable struct {
	Service    ServiceKey
	VIP4, VIP6 netip.Addr
	Ports      []Port     // published ports; Connect has an instance's targets
	Endpoints  []Endpoint // at most EndpointsMax
	// Via is the host that serves the service while no endpoint here takes new flows. Packets
	// without a flow here are forwarded to it unchanged. Zero: no other host serves it, or not by
	// this address family.
	Via4, Via6 netip.Addr
}

// ServicesMax is the largest number of services in a cluster. Every host steers every service, and
// its tables have this many places (SERVICES_MAX in bpf/pando.h).
const ServicesMax = 16384

// EndpointsMax is the largest number of endpoints of one service on one host.
const EndpointsMax = 4096

// Endpoint is one destination of flows.
type Endpoint struct {
	Instance InstanceID
	Revision int
	Weight   int // share of new flows; 0 drains: it keeps its flows and gets no new ones
	// Soon is the weight that the endpoint will get next. 0: not known. A driver may prepare for
	// it, without an effect on packets.
	Soon int
	Link Link
}

// SweepReport is the result of a sweep.
type SweepReport struct {
	Flows   map[InstanceID]int // still in the table
	Closed  int                // entries dropped
	Evicted int                // flows that a full table ever dropped, longest unused first
}

// DropReason is the reason for a dropped packet.
type DropReason string

const (
	DroppedSpoofed    DropReason = "spoofed"     // the source address or MAC is not the instance's own
	DroppedChatter    DropReason = "chatter"     // link-local, of no use to anyone
	DroppedFragment   DropReason = "fragment"    // its first fragment was not seen
	DroppedHeader     DropReason = "header"      // cut short, or an extension that cannot be read
	DroppedProtocol   DropReason = "protocol"    // to a VIP, but not TCP, UDP, an echo or an error
	DroppedNoService  DropReason = "no_service"  // no service has this VIP:port
	DroppedNoEndpoint DropReason = "no_endpoint" // none in rotation, or the flow's endpoint is gone
	DroppedNoFlow     DropReason = "no_flow"     // of an unknown flow, and not its first packet
	DroppedKernel     DropReason = "kernel"      // the kernel could not change the packet as needed
)

// Drops counts dropped packets.
type Drops struct {
	Packets  map[DropReason]uint64
	Answered uint64 // of them, those answered with RST or ICMP "port unreachable"
}

// Losses are the packets and flows that the steering of one host lost since its birth.
type Losses struct {
	Dropped  map[DropReason]uint64 `json:"dropped"`  // packets by reason; reasons with 0 are left out
	Answered uint64                `json:"answered"` // of them, those answered by RST or ICMP
	Evicted  int                   `json:"evicted"`  // flows that a full connection table dropped
}

// EndpointCounters are totals since the endpoint was published.
type EndpointCounters struct {
	Service  ServiceKey `json:"service"`
	Instance InstanceID `json:"instance"`
	Flows    uint64     `json:"flows"` // new flows steered to it
	Packets  uint64     `json:"packets"`
	Bytes    uint64     `json:"bytes"`
	Ends     uint64     `json:"ends"` // packets that end a flow: FIN or RST, of either side
	At       time.Time  `json:"at"`
}
