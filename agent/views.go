package agent

import (
	"context"
	"net/http"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/inspect"
	"pando.run/pando/agent/move"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/seed"
	"pando.run/pando/agent/self"
	"pando.run/pando/world"
)

// newHost returns what the runners of this host share. Its parts exist already.
func (a *Agent) newHost() *runner.Host {
	c := &a.config
	return &runner.Host{
		Name: c.Host.Name, Clock: c.Clock, IDs: c.IDs, Log: c.Log, Spawn: a.spawn,
		Serve:  func(i pando.InstanceID) http.Handler { return c.Programs.Serve(a.self, i) },
		Prober: c.Programs.Prober, Steering: c.Packets.Steering, Volumes: c.Programs.Volumes,
		Records: a.records, Branches: a.branches, Tables: a.queue, Payments: a.payments,
		Sweeper: a.sweeper, Counter: a.counts, Supplier: a.supplier,
		Seeds: seed.New(c.Programs.Snapshots, c.Log), Work: a.work, Agent: runnerView{a},
	}
}

// runnerView is the view of this agent for its runners.
type runnerView struct{ a *Agent }

var _ runner.Agent = runnerView{}

func (v runnerView) Show(r *runner.Runner, now runner.Status) { v.a.crews.Show(r, now) }

func (v runnerView) Remove(r *runner.Runner) {
	v.a.crews.Remove(r)
	v.a.records.Lock()
	defer v.a.records.Unlock()
	v.a.scope.rescope(v.a.records.World, r.Service)
}

func (v runnerView) FollowSources(r *runner.Runner, s pando.Spec) { v.a.crews.FollowSources(r, s) }

func (v runnerView) OnlyShare(r *runner.Runner) bool { return v.a.crews.OnlyShare(r) }

func (v runnerView) OthersAnswer(r *runner.Runner) bool { return v.a.crews.OthersAnswer(r) }

func (v runnerView) ReadAsks(ctx context.Context, s pando.ServiceKey, after uint64) error {
	return v.a.askReads.Read(ctx, s, after)
}

func (v runnerView) LeaveBy() time.Time { return v.a.leavesBy() }

func (v runnerView) TakeSeed(
	ctx context.Context, r *runner.Runner, plain bool, resumed func(),
) (pando.SealedSnapshot, error) {
	return v.a.snapshots.Take(ctx, r, move.Taking{Seed: true, Plain: plain, Resumed: resumed})
}

func (v runnerView) Departs(i pando.InstanceID, m pando.Move) { v.a.departures.Departs(i, m) }

func (v runnerView) Stays(i pando.InstanceID) { v.a.departures.Stays(i) }

func (v runnerView) KeepHere(r *runner.Runner, m pando.MoveMark) { v.a.departures.KeepHere(r, m) }

func (v runnerView) Landed(r *runner.Runner, m pando.MoveMark) { v.a.arrivals.Land(r, m) }

func (v runnerView) HandOver(r *runner.Runner, box pando.Sandbox) { v.a.departures.HandOver(r, box) }

// newSelf returns the API of the instances. Its parts exist already.
func (a *Agent) newSelf() *self.API {
	c := &a.config
	return &self.API{
		Host: c.Host.Name, Records: a.records, Branches: a.branches, Sandboxes: c.Programs.Sandboxes,
		Steering: c.Packets.Steering, Sweeper: a.sweeper, Peers: c.Peers, Control: c.Server.Control,
		Clock: c.Clock, IDs: c.IDs, Log: c.Log, Spawn: a.spawn, Agent: selfView{a},
	}
}

// selfView is the view of this agent for the API of its instances.
type selfView struct{ a *Agent }

var _ self.Agent = selfView{}

func (v selfView) Runner(i pando.InstanceID) (*runner.Runner, error) { return v.a.crews.Runner(i) }

func (v selfView) RunnerIn(_ *world.World, i pando.InstanceID) *runner.Runner {
	return v.a.crews.ByName[i]
}

func (v selfView) FellowsIn(
	w *world.World, r *runner.Runner,
) (youngest []pando.InstanceStatus, all int) {
	return v.a.crews.FellowsIn(w, r)
}

func (v selfView) Learn(brought []pando.Record) { v.a.learn(brought) }

func (v selfView) Applied(
	ctx context.Context, of []pando.ServiceKey, at pando.StoreRevision,
) (missing string, err error) {
	return v.a.Applied(ctx, of, at)
}

func (v selfView) MayWrite() error { return v.a.mayWrite() }

// newMoves returns what the moves and the snapshots of this host share. Its parts exist already.
func (a *Agent) newMoves() *move.Host {
	c := &a.config
	return &move.Host{
		Name: c.Host.Name, Records: a.records, Branches: a.branches, Supplier: a.supplier,
		Seeds: a.host.Seeds, Tables: a.queue, Steering: c.Packets.Steering, Payments: a.payments,
		Peers: c.Peers, Registry: c.Server.Registry, Clock: c.Clock, Log: c.Log, Spawn: a.spawn,
		Agent: moveView{a},
	}
}

// moveView is the view of this agent for its moves.
type moveView struct{ a *Agent }

var _ move.Agent = moveView{}

func (v moveView) Runner(i pando.InstanceID) (*runner.Runner, error) { return v.a.crews.Runner(i) }

func (v moveView) Rescope(_ *world.World, s pando.ServiceKey) {
	v.a.scope.rescope(v.a.records.World, s)
}

func (v moveView) RemoveSandbox(ctx context.Context, box pando.Sandbox) {
	v.a.removeStranger(ctx, box)
}

// newInspector returns the inspector of this host. Its parts exist already.
func (a *Agent) newInspector() *inspect.Inspector {
	c := &a.config
	return inspect.New(inspect.Inspector{
		Host: c.Host.Name, Version: c.Host.Version, Records: a.records, Tables: a.queue,
		Sweeper: a.sweeper, Meter: a.meter, Tally: &a.host.Tally, Steering: c.Packets.Steering,
		Kept: c.Programs.Volumes, OpenLog: c.Programs.OpenLog, Traffic: c.Packets.Traffic,
		Queues: c.Packets.Queues, Uplinks: c.Packets.Uplinks, Logged: c.Process.Logged,
		Clock: c.Clock, Log: c.Log, Agent: inspectView{a},
	})
}

// inspectView is the view of this agent for its inspector.
type inspectView struct{ a *Agent }

var _ inspect.Agent = inspectView{}

func (v inspectView) Runner(i pando.InstanceID) (*runner.Runner, error) { return v.a.crews.Runner(i) }

func (v inspectView) Runners() []*runner.Runner { return v.a.crews.All() }

func (v inspectView) Losses(ctx context.Context) (pando.Losses, error) { return v.a.Losses(ctx) }

func (v inspectView) LeasesLost() uint64 { return v.a.leasesLost.Load() }

func (v inspectView) Shares() int { return v.a.announce.Shares() }
