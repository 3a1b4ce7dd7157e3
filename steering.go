package pando

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Steering sends packets for a VIP to instances, and their replies back. driver/network/ebpf implements it
// with tcx programs that need no process. The conformance table in test/steering holds any other
// driver to the same behaviour.
type Steering interface {
	// Publish steers one service by the table. It has taken effect for new flows when it returns.
	// Established flows stay with their endpoint as long as the table has it, at any weight. An
	// endpoint that left the table loses its flows. Endpoints on hosts without a way get no new flows;
	// the error is then an UnreachedError.
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
	// Score sets the scores of a service's endpoints, and their rank. They act on new flows at once,
	// without a new table, and hold for ScoresHold. Then the service chooses by hash until the next
	// scores. An instance that the table lacks is skipped.
	Score(ctx context.Context, s ServiceKey, r Ranking) error
	// Sweep drops table entries of ended flows: FIN, RST or idle, and no socket of the instance has
	// it. It returns the number of remaining flows per instance. A handshake counts as a flow in
	// its first seconds only.
	Sweep(ctx context.Context) (SweepReport, error)
	// Ends returns a count that grows when a flow of an endpoint ends visibly: a FIN or RST of either
	// side. It costs next to nothing. 0: the endpoint is not known, or none has ended.
	Ends(ctx context.Context, s ServiceKey, i InstanceID) (uint64, error)
	// Counters returns the counters of each endpoint since birth.
	Counters(ctx context.Context) ([]EndpointCounters, error)
	// Knocks returns the services that sleep (SteeringTable.Asleep) and got a first packet. The
	// packet is held, within bounds, until a table with an endpoint is in force.
	Knocks() <-chan ServiceKey
	// Drops returns the drops since birth, by reason. No packet is dropped without being counted.
	Drops(ctx context.Context) (Drops, error)
}

// SteeringTable describes the steering of one service on one host.
type SteeringTable struct {
	Service    ServiceKey
	VIP4, VIP6 netip.Addr
	Ports      []Port     // published ports; Connect has an instance's targets
	Names      []Named    // ordinals of a stateful service, which its tenant may reach
	Endpoints  []Endpoint // at most EndpointsMax
	// Via is the host that serves the service while no endpoint here takes new flows, or the one that
	// still has its flows while no host takes new ones. Packets without a flow here are forwarded to
	// it unchanged. Zero: there is no such host, or not by this address family.
	Via4, Via6 netip.Addr
	// By chooses the endpoints of new flows. "": ByHash. Policies without a rank obey the weights.
	// ByRoundRobin and ByHaven only leave out the endpoints that drain.
	By BalanceBy
	// At is where the choice happens. "": AtPacket.
	At BalanceAt
	// Asleep: the first packets of new flows are held while no endpoint takes them (Knocks).
	Asleep bool
}

// ScoresHold is how long scores count. A dead agent writes no new ones, and its last ones grow old.
const ScoresHold = 15 * time.Second

// Ranking is the result of one measurement of a service.
type Ranking struct {
	Scores []Score
	// Order is the order in which ByHaven takes the instances until the next ranking.
	Order []InstanceID
}

// ServicesMax is the largest number of services in a cluster. Every host steers every service, and
// its tables have this many places (SERVICES_MAX in bpf/pando.h).
const ServicesMax = 16384

// EndpointsMax is the largest number of endpoints of one service on one host.
const EndpointsMax = 4096

// TunnelPort is the UDP port at which every host receives packets for its instances from the other
// hosts of the cluster.
const TunnelPort = 7404

// Endpoint is one destination of flows.
type Endpoint struct {
	Instance InstanceID
	Revision int
	Weight   int // share of new flows; 0 drains: it keeps its flows and gets no new ones
	// Soon is the weight that the endpoint will get next. 0: not known. A driver may prepare for
	// it, without an effect on packets.
	Soon int
	Link Link // to its instance; zero if that is on another host
	// Remote is the address of the other host that runs the instance. Packets reach it in a tunnel,
	// and its replies go to their clients directly. Zero: it is on this host.
	Remote netip.Addr
	// Own4 and Own6 are the addresses of the instance itself on another host, for AtConnect. Its
	// ports are those of the table. Invalid: its clients use the VIP.
	Own4, Own6 netip.Addr
	// Silent: nothing reports whether the other host lives. A client's first packet that comes again
	// may go to another endpoint.
	Silent bool
}

// UnreachedError is the error of a publication that is in force, less the endpoints on hosts that
// are out of reach. Its repetition publishes them once there is a way.
type UnreachedError struct {
	Hosts []netip.Addr // sorted
	Cause error        // of the first host
}

// Unreached returns the error for hosts with a reason each.
func Unreached(hosts map[netip.Addr]error) *UnreachedError {
	all := slices.SortedFunc(maps.Keys(hosts), netip.Addr.Compare)
	return &UnreachedError{Hosts: all, Cause: hosts[all[0]]}
}

// Error returns the first host and its reason.
func (e *UnreachedError) Error() string {
	text := "1 host is out of reach"
	if n := len(e.Hosts); n > 1 {
		text = fmt.Sprintf("%d hosts are out of reach", n)
	}
	return fmt.Sprintf("%s: %s: %v", text, e.Hosts[0], e.Cause)
}

// Unwrap returns the reason of the first host.
func (e *UnreachedError) Unwrap() error { return e.Cause }

// InForce reports whether a publication with this error is in force, with a part left out.
func InForce(err error) bool {
	_, unreached := errors.AsType[*UnreachedError](err)
	_, taken := errors.AsType[*TakenError](err)
	return err == nil || unreached || taken
}

// HostSteering reports whether a host steers services by their newest endpoints.
type HostSteering struct {
	Host      HostName `json:"host"`
	Confirmed bool     `json:"confirmed"`
	// Partly: it steers by them and leaves out a part that it cannot do, such as a host behind a
	// tunnel that does not fit, or a published port that another program has.
	Partly bool `json:"partly,omitempty"`
	// WaitedSeconds is the time since a caller first asked whether hosts have these endpoints. Only a
	// host that has not confirmed them has it.
	WaitedSeconds float64 `json:"waited_seconds,omitempty"`
	// Reason explains why the host has not confirmed them, or what it leaves out.
	Reason string `json:"reason,omitempty"`
}

// SteeringWaitMax bounds Operators.Steering. The registry forgets a host that is silent for longer.
const SteeringWaitMax = HostLease

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
	DroppedStranger   DropReason = "stranger"    // in the tunnel, from an address that is no host's
	DroppedTooLarge   DropReason = "too_large"   // larger than the links of instances; answered by ICMP
)

// Drops counts dropped packets.
type Drops struct {
	Packets  map[DropReason]uint64
	Answered uint64 // of them, those answered with RST or ICMP "port unreachable"
}

// Losses are the packets and flows that the steering of one host lost since its birth.
type Losses struct {
	Dropped  map[DropReason]uint64 `json:"dropped,omitempty"` // packets by reason; reasons with 0 are left out
	Answered uint64                `json:"answered"`          // of them, those answered by RST or ICMP
	Evicted  int                   `json:"evicted"`           // flows that a full connection table dropped
	// Forged are the probes that no member sent. Dead names the hosts that this host's probes find
	// dead, separated by spaces.
	Forged uint64 `json:"forged,omitempty"`
	Dead   string `json:"dead,omitempty"`
	// Cut names the hosts that live, and between which and this host no packet comes through.
	Cut string `json:"cut,omitempty"`
	// Unreached names the hosts that get no new flows from this one, because it has no way to them.
	Unreached string `json:"unreached,omitempty"`
	// Silent names the instances whose shims do not answer, with the reason. Their programs run on.
	Silent string `json:"silent,omitempty"`
	// Resolvers names the name servers of the host that did not answer its newest question to them.
	Resolvers string `json:"resolvers,omitempty"`
	// Announces is how many VIPs the host answers for on its network, and why. "": for none.
	Announces string `json:"announces,omitempty"`
	// Holds are the shares of the VIPs that the host answers for, as Shares.String returns them.
	Holds string `json:"holds,omitempty"`
	// Routes are those that the host announces to routers. Nil: it speaks with none.
	Routes *Routes `json:"routes,omitempty"`
	// Now is the time of the host's clock at its answer.
	Now time.Time `json:"now,omitzero"`
}

// EndpointCounters are totals since the endpoint was published.
type EndpointCounters struct {
	Service  ServiceKey `json:"service"`
	Instance InstanceID `json:"instance"`
	Host     HostName   `json:"host,omitempty"` // that steered the flows
	Flows    uint64     `json:"flows"`          // new flows steered to it
	Packets  uint64     `json:"packets"`
	Bytes    uint64     `json:"bytes"`
	Ends     uint64     `json:"ends"` // packets that end a flow: FIN or RST, of either side
	At       time.Time  `json:"at"`
	Open     int        `json:"open,omitempty"` // its flows at the last sweep
	// Meter is the newest measurement of the instance's host. Nil: its service is not measured.
	Meter *Meter `json:"meter,omitempty"`
	// Score is its score as its own host sees it.
	Score *Score `json:"score,omitempty"`
}

// Endpoints is the compact record of one service: all that an agent of any host needs in order to
// steer it. Control writes it in the commit that changes it. A change of a service thus costs every
// agent one small event. No agent follows intents, decisions or the instances of other hosts.
type Endpoints struct {
	Service Service    `json:"service"`           // its record of the same commit
	Ports   []Port     `json:"ports,omitempty"`   // of its target revision
	Scale   Scale      `json:"scale,omitzero"`    // likewise
	Balance Balance    `json:"balance,omitzero"`  // likewise
	Aliases []string   `json:"aliases,omitempty"` // likewise
	Hosts   []HostName `json:"hosts,omitempty"`   // those with an instance, sorted
	Seats   []Seat     `json:"seats,omitempty"`   // its instances, oldest first
	// Names are the addresses of the ordinals of a stateful service, by ordinal.
	Names []Named `json:"names,omitempty"`
	// Hears is the address families by which all its instances accept.
	Hears Hearing `json:"hears,omitempty"`
	// Secrets is the newest change of the secrets that the spec of its target names. 0: none.
	Secrets StoreRevision `json:"secrets,omitempty"`
}

// Named is the address of an ordinal. It has one from its start on, also before it is ready: the
// others find it by its name.
type Named struct {
	Ordinal int        `json:"ordinal"`
	IP4     netip.Addr `json:"ip4,omitzero"`
	IP6     netip.Addr `json:"ip6,omitzero"`
	Term    int64      `json:"term,omitempty"` // see Instance.Term
	Hears   Hearing    `json:"hears,omitempty"`
}

// namesOf returns the addresses of the ordinals of a stateful service, by ordinal.
func namesOf(spec Spec, instances []Instance) (out []Named) {
	if !spec.Stateful() {
		return nil
	}
	for n := range instances {
		i := &instances[n]
		ends := i.Phase == PhaseFailed || i.Phase == PhaseMerged
		if i.Ordinal > 0 && !ends && (i.IP4.IsValid() || i.IP6.IsValid()) {
			out = append(out, Named{i.Ordinal, i.IP4, i.IP6, i.Term, i.Hears})
		}
	}
	slices.SortFunc(out, func(a, b Named) int { return a.Ordinal - b.Ordinal })
	return out
}

// EndpointsOf returns the record of a service with these instances, oldest first. spec is that of
// its target.
func EndpointsOf(svc Service, spec Spec, instances []Instance) Endpoints {
	svc.Book = nil // only operators read it
	e := Endpoints{Service: svc, Ports: spec.Ports, Scale: spec.Scale, Balance: spec.Balance,
		Aliases: spec.Aliases, Names: namesOf(spec, instances), Hears: hearingOf(instances)}
	for n := range instances {
		if n == 0 || instances[n].Host != instances[n-1].Host { // nearly all are on one host
			e.Hosts = append(e.Hosts, instances[n].Host)
		}
	}
	slices.Sort(e.Hosts)
	e.Hosts = slices.Compact(e.Hosts)
	if len(instances) > 0 {
		e.Seats = make([]Seat, 0, len(instances))
	}
	for n := range instances {
		i := &instances[n]
		host, _ := slices.BinarySearch(e.Hosts, i.Host)
		s := Seat{Instance: i.ID, Host: host, Revision: i.Revision, Weight: i.Weight, Phase: i.Phase}
		switch {
		case i.Run == nil && (i.Phase == PhasePlaced || i.Phase == PhaseStarting):
			s.Phase, s.Since = PhasePlaced, i.Born
		case i.Phase == PhaseWarm, i.Run != nil:
			s.Phase = PhaseWarm // it takes no flows
			s.Since = i.Born
		case i.Phase.TakesFlows():
			s.Since, s.At = i.Since, placeIn(i.IP4)
		default:
			s.Phase = PhaseDraining
		}
		if !s.Since.IsZero() {
			s.Since = s.Since.Truncate(time.Millisecond).UTC()
		}
		e.Seats = append(e.Seats, s)
	}
	return e
}

// placeIn returns the number of an address in its range of InstanceRange, which is a /20.
func placeIn(a netip.Addr) int {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return int(b[2]&0xf)<<8 | int(b[3])
}

// On reports whether an instance of the service is on a host.
func (e Endpoints) On(h HostName) bool {
	_, ok := slices.BinarySearch(e.Hosts, h)
	return ok
}

// Takers returns for each place in Hosts whether an instance on that host takes new flows.
func (e Endpoints) Takers() []bool {
	out := make([]bool, len(e.Hosts))
	for n := range e.Seats {
		s := &e.Seats[n]
		out[s.Host] = out[s.Host] || s.Phase.TakesFlows()
	}
	return out
}

// Keepers returns for each place in Hosts whether an instance on that host may have flows. An
// instance that drains has old ones and takes no new ones.
func (e Endpoints) Keepers() []bool {
	out := make([]bool, len(e.Hosts))
	for n := range e.Seats {
		s := &e.Seats[n]
		out[s.Host] = out[s.Host] || s.Phase.KeepsFlows()
	}
	return out
}

// HostOf returns the host of a seat.
func (e Endpoints) HostOf(s Seat) HostName { return e.Hosts[s.Host] }

// Check returns nil if the record is consistent, else the reason to refuse it.
func (e Endpoints) Check() error {
	if !slices.IsSorted(e.Hosts) {
		return fmt.Errorf("%w: endpoints of %s: its hosts are not sorted", ErrInvalid,
			e.Service.ServiceKey)
	}
	for _, s := range e.Seats {
		if s.Host < 0 || s.Host >= len(e.Hosts) || !s.Phase.Known() {
			return fmt.Errorf("%w: endpoints of %s: instance %s is on host %d of %d, in phase %q",
				ErrInvalid, e.Service.ServiceKey, s.Instance, s.Host, len(e.Hosts), s.Phase)
		}
	}
	return nil
}

// Connection is one connection of an instance, as its own sockets show it.
type Connection struct {
	Protocol      Protocol
	Client, Local netip.AddrPort
}
