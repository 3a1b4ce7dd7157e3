package agent

import (
	"cmp"
	"context"
	"net/http"

	"pando.run/pando"
	"pando.run/pando/agent/announce"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/crew"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/inspect"
	"pando.run/pando/agent/meter"
	"pando.run/pando/agent/move"
	"pando.run/pando/agent/outbound"
	"pando.run/pando/agent/presence"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/route"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/seed"
	"pando.run/pando/agent/self"
	"pando.run/pando/agent/steer"
	"pando.run/pando/agent/storeguard"
	"pando.run/pando/agent/supply"
	"pando.run/pando/agent/work"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// New returns an agent. Run starts it.
func New(c Config) *Agent {
	c.Host.Copies, c.Host.Freezes = true, c.Programs.Snapshots != nil
	c.States.TrimEvery = cmp.Or(c.States.TrimEvery, trimWait)
	c.States.Keep = cmp.Or(c.States.Keep, state.DefaultKeep)
	own := storeguard.New(c.Server.Registry, c.Server.Sightings, c.Clock, c.Log)
	c.Server.Registry = own
	a := &Agent{
		config: c, joins: make(joins, 1), guard: own, renewals: secretsSeen{},
		sweeper:  flows.NewSweeper(c.Packets.Steering, c.Clock, c.Log),
		payments: outbound.New(c.Packets.Outbound, c.Clock, c.Log),
		found:    map[pando.InstanceID]pando.Sandbox{},
	}
	a.scope, a.room, a.adoption = newScope(a), newRoom(a), &adoption{agent: a}
	a.records = records.New(records.Config{Host: c.Host.Name, Registry: own, Clock: c.Clock,
		IDs: c.IDs, Log: c.Log})
	a.queue = steer.New(c.Packets.Steering, tables{a}, c.Clock, c.Log)
	a.crews = crew.New(c.Host.Name, a.records, a.queue, c.Clock)
	a.askReads = crew.NewAskReads(a.crews)
	a.counts = flows.NewCounter(a.sweeper, c.Clock, c.Process.Worked)
	a.presence = presence.New(c.Host.Name, a.records, a.queue, c.Packets.Liveness, c.Log)
	a.supplier = supply.New(supply.Supplier{Host: c.Host.Name, Records: a.records,
		Sandboxes: c.Programs.Sandboxes, Images: c.Programs.Images, Snapshots: c.Programs.Snapshots,
		Secrets: c.Server.Secrets, SnapshotKeys: c.Server.SnapshotKeys, Admit: a.admitVolumes})
	a.announce = announce.NewHost(announce.HostConfig{Host: c.Host, Announcer: c.VIPs.Announcer,
		Peers: c.VIPs.Peers, Flows: c.VIPs.Flows, Records: a.records, Liveness: c.Packets.Liveness,
		Clock: c.Clock, Log: c.Log})
	a.routes = route.NewHost(route.HostConfig{Own: c.Host.Name, Routers: c.VIPs.Routers,
		Ends: c.VIPs.Ends, Records: a.records, Tables: a.queue, Peers: c.Peers,
		Liveness: c.Packets.Liveness, Frozen: own.Frozen, LeaveBy: a.leavesBy, Clock: c.Clock,
		Log: c.Log})
	a.work = &work.Reader{Books: c.Programs.Books, Traffic: c.Packets.Traffic,
		Running: a.crews.Running, Clock: c.Clock, IDs: c.IDs, Log: c.Log}
	a.meter = meter.New(meter.Config{Host: c.Host, Steering: c.Packets.Steering, Peers: c.Peers,
		Source: measured{a}, Link: c.Packets.Link, Path: c.Packets.Path, Queues: c.Packets.Queues,
		Clock: c.Clock, Log: c.Log})
	a.branches = branch.New(branch.Config{Host: c.Host.Name, Records: a.records,
		Objects: c.States.Objects, Journals: c.States.Journals, Peers: c.Peers, Clock: c.Clock,
		Log: c.Log, TrimEvery: c.States.TrimEvery, Keep: c.States.Keep})
	a.host, a.self = a.newHost(), a.newSelf()
	a.inspector = a.newInspector()
	m := a.newMoves()
	a.departures, a.arrivals = move.NewDepartures(m), move.NewArrivals(m)
	a.snapshots = move.NewSnapshots(m)
	return a
}

// Run adopts the sandboxes of a former agent, joins the cluster and keeps this host as the registry
// wants it until ctx ends. Instances continue to run after Run returns.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.wg.Wait()
	defer cancel()
	a.ctx = ctx
	boxes, err := a.config.Programs.Sandboxes.Attach(ctx)
	if err != nil {
		return err
	}
	for _, b := range boxes {
		if m, comes := b.Arriving(); comes {
			a.records.Lock()
			a.arrivals.Found(a.records.World, b, m)
			a.records.Unlock()
			continue
		}
		a.found[b.Instance()] = b
	}
	a.guard.Recall(len(boxes) > 0)
	a.work.LoadBook(len(boxes) > 0)
	if err := a.join(ctx); err != nil {
		return err
	}
	a.spawn(a.queue.Run)
	a.spawn(a.sweeper.Run)
	a.spawn(a.counts.Run)
	a.spawn(a.payments.Run)
	a.spawn(a.presence.Run)
	a.spawn(a.announce.Run)
	a.spawn(a.routes.Run)
	a.spawn(a.meter.Run)
	a.spawn(a.work.Run)
	a.spawn(a.self.WakeServices)
	a.spawn(a.branches.TrimOften)
	a.spawn(a.branches.Tend)
	if a.room != nil {
		a.spawn(a.room.Run)
	}
	scope := a.following()
	scope.Odd = func(err error) {
		a.config.Log.Error("the store cannot be followed; it is tried again", "error", err)
	}
	return world.FollowScope(ctx, a.config.Clock, a.config.Server.Registry, scope)
}

// newHost returns what the runners of this host share. Its parts exist already.
func (a *Agent) newHost() *runner.Host {
	c := &a.config
	return &runner.Host{
		Name: c.Host.Name, Clock: c.Clock, IDs: c.IDs, Log: c.Log, Spawn: a.spawn,
		Serve:  func(i pando.InstanceID) http.Handler { return c.Programs.Serve(a.self, i) },
		Prober: c.Programs.Prober, Steering: c.Packets.Steering, Volumes: c.Programs.Volumes,
		Records: a.records, Branches: a.branches, Tables: a.queue, Payments: a.payments,
		Sweeper: a.sweeper, Counter: a.counts, Supplier: a.supplier,
		Seeds: seed.New(c.Programs.Snapshots, c.Log), Work: a.work, Agent: view{a},
	}
}

// newSelf returns the API of the instances. Its parts exist already.
func (a *Agent) newSelf() *self.API {
	c := &a.config
	return &self.API{
		Host: c.Host.Name, Records: a.records, Branches: a.branches, Sandboxes: c.Programs.Sandboxes,
		Steering: c.Packets.Steering, Sweeper: a.sweeper, Peers: c.Peers, Control: c.Server.Control,
		Clock: c.Clock, IDs: c.IDs, Log: c.Log, Spawn: a.spawn, Agent: view{a},
	}
}

// newMoves returns what the moves and the snapshots of this host share. Its parts exist already.
func (a *Agent) newMoves() *move.Host {
	c := &a.config
	return &move.Host{
		Name: c.Host.Name, Records: a.records, Branches: a.branches, Supplier: a.supplier,
		Seeds: a.host.Seeds, Tables: a.queue, Steering: c.Packets.Steering, Payments: a.payments,
		Peers: c.Peers, Registry: c.Server.Registry, Clock: c.Clock, Log: c.Log, Spawn: a.spawn,
		Agent: view{a},
	}
}

// newInspector returns the inspector of this host. Its parts exist already.
func (a *Agent) newInspector() *inspect.Inspector {
	c := &a.config
	return inspect.New(inspect.Inspector{
		Host: c.Host.Name, Version: c.Host.Version, Records: a.records, Tables: a.queue,
		Sweeper: a.sweeper, Meter: a.meter, Tally: &a.host.Tally, Steering: c.Packets.Steering,
		Kept: c.Programs.Volumes, OpenLog: c.Programs.OpenLog, Traffic: c.Packets.Traffic,
		Queues: c.Packets.Queues, Uplinks: c.Packets.Uplinks, Logged: c.Process.Logged,
		Clock: c.Clock, Log: c.Log, Agent: view{a},
	})
}
