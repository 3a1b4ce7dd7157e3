package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	"pando.run/pando"
)

var _ pando.Peers = (*Peers)(nil)

// Peers calls the agents of a simulation directly.
type Peers struct {
	*network
	Own pando.HostName // the caller
}

// network connects the hosts.
type network struct {
	mu     sync.Mutex
	agents map[pando.HostName]pando.HostAgent
}

// NewPeers returns a network without hosts.
func NewPeers() *Peers {
	return &Peers{network: &network{agents: map[pando.HostName]pando.HostAgent{}}}
}

// Set connects the agent of a host. A nil agent takes the host off the network.
func (p *Peers) Set(h pando.HostName, a pando.HostAgent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.agents, h)
	if a != nil {
		p.agents[h] = a
	}
}

func (p *Peers) agent(h pando.Host) (pando.HostAgent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.agents[h.Name]
	if !ok {
		return nil, fmt.Errorf("%w: host %s does not answer", pando.ErrUnreachable, h.Name)
	}
	return a, nil
}

// Applied returns once the host's steering reflects services up to a store revision.
func (p *Peers) Applied(
	ctx context.Context, h pando.Host, of []pando.ServiceKey, at pando.StoreRevision,
) (string, error) {
	a, err := p.agent(h)
	if err != nil {
		return "", err
	}
	return a.Applied(ctx, of, at)
}

// Logs returns lines of instances of a service on a host.
func (p *Peers) Logs(
	ctx context.Context, h pando.Host, s pando.ServiceKey, i []pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.Logs(ctx, s, i, q)
}

// Counters returns the counters of a host's steering.
func (p *Peers) Counters(ctx context.Context, h pando.Host) ([]pando.EndpointCounters, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.Counters(ctx)
}

// Losses returns the losses of a host's steering.
func (p *Peers) Losses(ctx context.Context, h pando.Host) (pando.Losses, error) {
	a, err := p.agent(h)
	if err != nil {
		return pando.Losses{}, err
	}
	return a.Losses(ctx)
}

// Usage returns the use of instances of a host.
func (p *Peers) Usage(
	ctx context.Context, h pando.Host, s pando.ServiceKey,
) ([]pando.InstanceUsage, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.Usage(ctx, s)
}

// Work returns the work of a host after a mark.
func (p *Peers) Work(
	ctx context.Context, h pando.Host, after pando.WorkMark,
) (pando.WorkBatch, error) {
	a, err := p.agent(h)
	if err != nil {
		return pando.WorkBatch{}, err
	}
	return a.Work(ctx, after)
}

// Volumes returns the volumes of a host.
func (p *Peers) Volumes(
	ctx context.Context, h pando.Host, q pando.VolumeQuery,
) ([]pando.KeptVolume, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.Volumes(ctx, q)
}

// RemoveVolume deletes a volume of a service on a host.
func (p *Peers) RemoveVolume(
	ctx context.Context, h pando.Host, s pando.ServiceKey, name string,
) error {
	a, err := p.agent(h)
	if err != nil {
		return err
	}
	return a.RemoveVolume(ctx, s, name)
}

// Meters streams the measurements of a host.
func (p *Peers) Meters(ctx context.Context, h pando.Host) (<-chan pando.Meters, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.Meters(ctx)
}

// Exec runs a command inside an instance of a host.
func (p *Peers) Exec(
	ctx context.Context, h pando.Host, i pando.InstanceID, s pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.Exec(ctx, i, s)
}

// StateLog returns the newest commits of a service's main branch.
func (p *Peers) StateLog(
	ctx context.Context, h pando.Host, s pando.ServiceKey, max int,
) ([]pando.StateCommit, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.StateLog(ctx, s, max)
}

// State returns the host's handler, or one that answers with an error if the host is unreachable.
func (p *Peers) State(h pando.Host) http.Handler {
	a, err := p.agent(h)
	if err != nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		})
	}
	return a.State()
}

// ShipState sends objects of a state to a host.
func (p *Peers) ShipState(
	ctx context.Context, h pando.Host, write func(io.Writer) error,
) (pando.Receipt, error) {
	a, err := p.agent(h)
	if err != nil {
		return pando.Receipt{}, err
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return pando.Receipt{}, err
	}
	return a.TakeState(ctx, p.Own, &b)
}

// FetchState opens the objects of a state from a host.
func (p *Peers) FetchState(
	ctx context.Context, h pando.Host, q pando.StateWanted,
) (io.ReadCloser, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := a.GiveState(ctx, q, &b); err != nil {
		return nil, err
	}
	return io.NopCloser(&b), nil
}

// As returns the same network for the calls of one host.
func (p *Peers) As(h pando.HostName) *Peers { return &Peers{network: p.network, Own: h} }
