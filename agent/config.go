package agent

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"pando.run/pando"
	"pando.run/pando/edge"
	"pando.run/pando/state"
)

// Config holds the settings of an agent, and its dependencies, grouped by counterpart.
type Config struct {
	Host  pando.Host
	Clock pando.Clock
	IDs   pando.IDs
	Log   *slog.Logger
	Peers pando.Peers // the agents of the other hosts

	Server   Server
	Programs Programs
	Packets  Packets
	VIPs     VIPs
	States   States
	Process  Process
}

// Server is the server of the cluster, and its store.
type Server struct {
	Registry pando.Registry
	// Control answers an ask in one durable write. If it is nil or unreachable, the agent writes the
	// ask to the store, and the watch brings the answer.
	Control pando.Decider
	// Secrets returns the secrets of an instance of this host. Nil: there are none.
	Secrets func(context.Context, pando.InstanceID) (map[string][]byte, error)
	// SnapshotKeys returns the keys of the snapshots of an instance of this host. Nil: this host makes
	// none.
	SnapshotKeys func(context.Context, pando.InstanceID) (pando.SnapshotKeys, error)
	// Sightings keeps which store this host has seen. Nil: a new agent accepts any store.
	Sightings pando.Sightings
}

// Programs are the dependencies for the programs of instances: sandboxes, images, volumes.
type Programs struct {
	Sandboxes pando.Sandboxes
	Prober    pando.Prober
	Images    pando.Images    // nil: no service of this host has an image
	Snapshots pando.Snapshots // nil: this host makes none
	Volumes   pando.Volumes   // nil: no service of this host has a volume
	Disk      pando.Disk      // nil: nothing bounds what volumes take
	// Books keeps the book of this host's work, for bills. Nil: its work is not billed.
	Books pando.Books
	// Serve returns the HTTP handler of an instance's own API.
	Serve func(pando.Self, pando.InstanceID) http.Handler
	// OpenLog returns lines of an instance that runs or is gone.
	OpenLog func(
		ctx context.Context, s pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
	) (pando.LogLines, error)
}

// Packets is the way of packets to and from instances.
type Packets struct {
	Steering pando.Steering
	// Liveness finds dead hosts before their leases end. Nil: only the leases count.
	Liveness edge.Liveness
	// Outbound shares connections to other machines among tenants. Nil: one tenant may take all.
	Outbound pando.Outbound
	// Traffic returns the bytes that a device of this host has sent and received. Nil: unknown.
	Traffic func(device string) (sent, received uint64)
	// Queues returns the queues of the devices of this host, by name. Nil: unknown. Uplinks names
	// those to report.
	Queues  func() (map[string]pando.LinkQueue, error)
	Uplinks []string
	// Link and Path are those of meter.Config.
	Link func() float64
	Path func(ifindex int) pando.PathUse
}

// VIPs are the networks on which this host announces VIPs.
type VIPs struct {
	// Announcer answers for VIPs on the network that Host.Segment names, after Peers has asked the
	// other hosts. Nil: clients need a route to a host. Flows fills the connection table before.
	Announcer edge.Announcer
	Peers     edge.VIPPeers
	Flows     edge.FlowBook
	// Routers announces VIPs to routers. Nil: this host speaks with none. Ends reports, at the end of
	// the agent, that no agent follows on this host.
	Routers pando.Routers
	Ends    func() bool
}

// States are the states of services that this host keeps.
type States struct {
	Objects  pando.Objects
	Journals pando.Journals // nil: uncommitted writes of instances are lost with the agent
	// Git returns the read-only smart HTTP handler of states. Nil disables it.
	Git func(resolve func(pando.ServiceKey) (pando.Objects, pando.ObjectID, error)) http.Handler
	// TrimEvery is the interval at which the agent trims old history. Keep is the history that
	// remains. Zero means five minutes and state.DefaultKeep.
	TrimEvery time.Duration
	Keep      state.Keep
}

// Process is the process of the agent.
type Process struct {
	// Worked returns the processor time of this process. Nil: it counts as busy all the time.
	Worked func() time.Duration
	// Logged returns the counts of this process's log. Nil: they are 0.
	Logged func() pando.LogFigures
	// Resolvers names the name servers of the host that do not answer. Nil: none is known.
	Resolvers func() string
}

// trimWait is the default time between two trims of the states of this host.
const trimWait = 5 * time.Minute
