package agent

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"pando.run/pando"
)

// publish steers one service to its instances on this host. A failure is retried. The caller holds
// the lock.
func (a *Agent) publish(s pando.ServiceKey) { a.did(errand{publishTable, s}, a.steer(s)) }

func (a *Agent) steer(s pando.ServiceKey) error {
	svc, ok := a.world.Services[s]
	if !ok {
		delete(a.merges, s)
		delete(a.steered, s)
		return a.Steering.Withdraw(a.ctx, s)
	}
	spec, ok := a.world.SpecOf(s, svc.V.Target)
	if !ok || !svc.V.VIP4.IsValid() {
		return nil
	}
	t := pando.SteeringTable{
		Service: s, VIP4: svc.V.VIP4, VIP6: svc.V.VIP6, Ports: spec.Ports, Endpoints: make([]pando.Endpoint, 0, len(a.crews[s])),
	}
	for _, r := range a.crews[s] {
		if r.box == nil || r.exited != nil || r.inst.Phase == pando.PhaseFailed {
			continue
		}
		// Includes starting instances: a former agent may have steered flows to one and died before it
		// recorded that.
		e := pando.Endpoint{Instance: r.id, Revision: r.inst.Revision, Link: r.link}
		switch {
		case r.inst.Phase.TakesFlows():
			e.Weight = r.inst.Weight
		case r.inst.Phase == pando.PhaseWarm, r.inst.Phase == pando.PhaseStarting && !r.inst.Warm:
			e.Soon = r.inst.Weight
		}
		t.Endpoints = append(t.Endpoints, e)
	}
	via := a.elsewhere(s, t.Endpoints)
	t.Via4, t.Via6 = via.Address, via.Address6
	if was, ok := a.steered[s]; ok && sameTable(was, t) {
		return nil // most commits about a service change nothing here, and computing shares is slow
	}
	if err := a.Steering.Publish(a.ctx, t); err != nil {
		delete(a.steered, s)
		return err
	}
	a.steered[s] = t
	return nil
}

func sameTable(x, y pando.SteeringTable) bool {
	return x.VIP4 == y.VIP4 && x.VIP6 == y.VIP6 && x.Via4 == y.Via4 && x.Via6 == y.Via6 && slices.Equal(x.Ports, y.Ports) &&
		slices.EqualFunc(x.Endpoints, y.Endpoints, func(e, f pando.Endpoint) bool {
			return e.Instance == f.Instance && e.Revision == f.Revision && e.Weight == f.Weight && e.Soon == f.Soon && sameLink(e.Link, f.Link)
		})
}

func sameLink(x, y pando.Link) bool {
	return x.IP4 == y.IP4 && x.IP6 == y.IP6 && x.IfIndex == y.IfIndex && x.Host == y.Host && x.Netns == y.Netns &&
		bytes.Equal(x.MAC, y.MAC) && bytes.Equal(x.HostMAC, y.HostMAC)
}

// elsewhere returns the host that serves a service while no endpoint here takes new flows, or the
// zero Host.
func (a *Agent) elsewhere(s pando.ServiceKey, here []pando.Endpoint) (via pando.Host) {
	if len(a.world.Hosts) < 2 || slices.ContainsFunc(here, func(e pando.Endpoint) bool { return e.Weight > 0 }) {
		return via
	}
	for _, i := range a.world.Of(s) {
		h, alive := a.world.Hosts[i.Host]
		if !alive || h.V.Name == a.Host.Name || !i.Phase.TakesFlows() || !a.vouched(h.V) {
			continue
		}
		if h.V.Name == a.world.Services[s].V.Home || via.Name == "" {
			via = h.V
		}
	}
	return via
}

// neighbours updates the steering after hosts join or leave. The caller holds the lock.
func (a *Agent) neighbours() {
	a.meetNeighbours()
	for _, s := range a.world.Names() {
		a.publish(s)
	}
}

// meetNeighbours sends the list of other hosts to the steering. The caller holds the lock.
func (a *Agent) meetNeighbours() {
	var others []pando.Host
	for _, h := range a.world.Hosts {
		if h.V.Name != a.Host.Name && a.vouched(h.V) {
			others = append(others, h.V)
		}
	}
	a.did(errand{kind: findWays}, a.Steering.Neighbours(a.ctx, others))
}

// vouched reports whether the addresses in a host's record match its membership. Packets go to the
// addresses in the record. The server writes the record of its own host itself. The caller holds
// the lock.
func (a *Agent) vouched(h pando.Host) bool {
	m, ok := a.world.Members[h.Name]
	if !ok || m.V.Server {
		return true
	}
	err := m.V.Vouches(h)
	if err != nil {
		a.Log.Error("no packets go to a host", "host", h.Name, "error", err)
	}
	return err == nil
}

// forgetStrangers withdraws the tables of services without a record, which a former agent
// published. The caller holds the lock.
func (a *Agent) forgetStrangers() {
	published, err := a.Steering.Published(a.ctx)
	a.did(errand{kind: listSteered}, err)
	for _, s := range published {
		if _, ok := a.world.Services[s]; !ok {
			a.publish(s)
		}
	}
}

// The intervals between sweeps of the connection table: normally, and while a caller waits for a
// drain.
const (
	sweepInterval      = 5 * time.Second
	sweepDrainInterval = 50 * time.Millisecond
)

func (a *Agent) sweepNow(ctx context.Context) {
	for pando.Sleep(ctx, a.Clock, sweepInterval) == nil {
		if _, err := a.flows(ctx, ""); err != nil && ctx.Err() == nil {
			a.Log.Warn("the connection table is swept again later", "in", sweepInterval, "error", err)
		}
	}
}

// flows returns the number of flows that an instance has in the connection table. It sweeps the
// table at most once per interval.
func (a *Agent) flows(ctx context.Context, i pando.InstanceID) (int, error) {
	if err := a.sweeping.take(ctx); err != nil {
		return 0, err
	}
	defer a.sweeping.give()
	now := a.Clock.Now()
	if now.Sub(a.swept) >= sweepDrainInterval {
		report, err := a.Steering.Sweep(ctx)
		if err != nil {
			return 0, fmt.Errorf("sweep the connection table: %w", err)
		}
		a.swept = now
		a.mu.Lock()
		a.sweep = report
		a.mu.Unlock()
		a.evicted.Store(int64(report.Evicted))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sweep.Flows[i], nil
}

// Applied implements pando.HostAgent. It waits until the steering of this host reflects the
// registry up to a revision and the table of the service is published.
func (a *Agent) Applied(ctx context.Context, s pando.ServiceKey, at pando.StoreRevision) error {
	return a.wait(ctx, func() bool { return a.applied >= at && a.inForce(s) })
}

// Counters implements pando.HostAgent.
func (a *Agent) Counters(ctx context.Context) ([]pando.EndpointCounters, error) {
	return a.Steering.Counters(ctx)
}

// Losses implements pando.HostAgent.
func (a *Agent) Losses(ctx context.Context) (pando.Losses, error) {
	d, err := a.Steering.Drops(ctx)
	if err != nil {
		return pando.Losses{}, err
	}
	// Evicted is as of the last sweep, so that a reader does not wait for a walk over a million flows.
	l := pando.Losses{Dropped: d.Packets, Answered: d.Answered, Evicted: int(a.evicted.Load())}
	maps.DeleteFunc(l.Dropped, func(_ pando.DropReason, n uint64) bool { return n == 0 })
	return l, nil
}

// VIPs returns the VIPs of a service by its name.
func (a *Agent) VIPs(name pando.ServiceName, tenant pando.Tenant) (v4, v6 netip.Addr, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.world.Services[pando.ServiceKey{Tenant: tenant, Name: name}]
	return s.V.VIP4, s.V.VIP6, ok
}
