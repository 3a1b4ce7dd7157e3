package agent

import (
	"context"
	"io"
	"net/http"
	"net/netip"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// hostAPI answers the server and the other hosts. Each part is a room, or this package.
type hostAPI struct {
	steered
	observed
	stated
	exchanged
	departing
	arriving
	pando.SnapshotAgent
	pando.WorkAgent
}

// These are the parts of pando.HostAgent. The root says what their methods do.
type (
	steered interface {
		Applied(context.Context, []pando.ServiceKey, pando.StoreRevision) (string, error)
		Losses(context.Context) (pando.Losses, error)
	}
	observed interface {
		Logs(context.Context, pando.ServiceKey, []pando.InstanceID, pando.LogQuery) (pando.LogLines, error)
		Counters(context.Context) ([]pando.EndpointCounters, error)
		Exec(context.Context, pando.InstanceID, pando.SessionSpec) (io.ReadWriteCloser, error)
		Usage(context.Context, pando.ServiceKey) ([]pando.InstanceUsage, error)
		Volumes(context.Context, pando.VolumeQuery) ([]pando.KeptVolume, error)
		RemoveVolume(context.Context, pando.ServiceKey, string) error
		Meters(context.Context) (<-chan pando.Meters, error)
	}
	stated interface {
		StateLog(context.Context, pando.ServiceKey, int) ([]pando.StateCommit, error)
		State() http.Handler
	}
	exchanged interface {
		TakeState(context.Context, pando.HostName, io.Reader) (pando.Receipt, error)
		GiveState(context.Context, pando.StateWanted, io.Writer) error
	}
	departing interface {
		Depart(context.Context, pando.Move) (pando.Arrival, error)
		Moving(context.Context, string) (bool, error)
	}
	arriving interface {
		Expect(context.Context, pando.Move) error
		Carry(context.Context, pando.HostName, string, io.Reader) (pando.Arrival, error)
		Landed(context.Context, string) (pando.MoveStatus, error)
		Hand(context.Context, pando.HostName, string, [][]byte) error
		GiveUp(context.Context, string) error
	}
)

// HostAgent returns the answers of this host to the server and to other hosts.
func (a *Agent) HostAgent() pando.HostAgent {
	return hostAPI{a, a.inspector, a, a.branches, a.departures, a.arrivals, a.snapshots, a.work}
}

// Self returns the API of the instances of this host.
func (a *Agent) Self() pando.Self { return a.self }

// VIPHolder returns the answers of this host about VIPs.
func (a *Agent) VIPHolder() edge.VIPHolder { return a.announce }

// Reporter returns the figures of this host.
func (a *Agent) Reporter() pando.HostReporter { return a.inspector }

// Endpoints returns the ports and the instances of a service.
func (a *Agent) Endpoints(s pando.ServiceKey) (pando.Endpoints, bool) { return a.records.Endpoints(s) }

// InstanceAt returns the service of the instance of this host with an address, and its spec.
func (a *Agent) InstanceAt(at netip.Addr) (pando.ServiceKey, pando.Spec, bool) {
	return a.crews.InstanceAt(at)
}
