package agent

import (
	"context"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/inspect"
	"pando.run/pando/agent/move"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/self"
	"pando.run/pando/world"
)

// view is the view of this agent for its rooms. Each room says what it needs of it.
type view struct{ a *Agent }

var (
	_ runner.Agent  = view{}
	_ self.Agent    = view{}
	_ move.Agent    = view{}
	_ inspect.Agent = view{}
)

func (v view) Show(r *runner.Runner, now runner.Status) { v.a.crews.Show(r, now) }

func (v view) Remove(r *runner.Runner) {
	v.a.crews.Remove(r)
	v.a.records.Lock()
	defer v.a.records.Unlock()
	v.a.scope.rescope(v.a.records.World, r.Service)
}

func (v view) FollowSources(r *runner.Runner, s pando.Spec) { v.a.crews.FollowSources(r, s) }

func (v view) OnlyShare(r *runner.Runner) bool { return v.a.crews.OnlyShare(r) }

func (v view) OthersAnswer(r *runner.Runner) bool { return v.a.crews.OthersAnswer(r) }

func (v view) ReadAsks(ctx context.Context, s pando.ServiceKey, after uint64) error {
	return v.a.askReads.Read(ctx, s, after)
}

func (v view) LeaveBy() time.Time { return v.a.leavesBy() }

func (v view) TakeSeed(
	ctx context.Context, r *runner.Runner, plain bool, resumed func(),
) (pando.SealedSnapshot, error) {
	return v.a.snapshots.Take(ctx, r, move.Taking{Seed: true, Plain: plain, Resumed: resumed})
}

func (v view) Departs(i pando.InstanceID, m pando.Move) { v.a.departures.Departs(i, m) }

func (v view) Stays(i pando.InstanceID) { v.a.departures.Stays(i) }

func (v view) KeepHere(r *runner.Runner, m pando.MoveMark) { v.a.departures.KeepHere(r, m) }

func (v view) Landed(r *runner.Runner, m pando.MoveMark) { v.a.arrivals.Land(r, m) }

func (v view) HandOver(r *runner.Runner, box pando.Sandbox) { v.a.departures.HandOver(r, box) }

func (v view) Runner(i pando.InstanceID) (*runner.Runner, error) { return v.a.crews.Runner(i) }

func (v view) RunnerIn(_ *world.World, i pando.InstanceID) *runner.Runner {
	return v.a.crews.ByName[i]
}

func (v view) FellowsIn(
	w *world.World, r *runner.Runner,
) (youngest []pando.InstanceStatus, all int) {
	return v.a.crews.FellowsIn(w, r)
}

func (v view) Learn(brought []pando.Record) { v.a.learn(brought) }

func (v view) Applied(
	ctx context.Context, of []pando.ServiceKey, at pando.StoreRevision,
) (missing string, err error) {
	return v.a.Applied(ctx, of, at)
}

func (v view) MayWrite() error { return v.a.mayWrite() }

func (v view) Rescope(w *world.World, s pando.ServiceKey) { v.a.scope.rescope(w, s) }

func (v view) RemoveSandbox(ctx context.Context, box pando.Sandbox) {
	v.a.removeStranger(ctx, box)
}

func (v view) Runners() []*runner.Runner { return v.a.crews.All() }

func (v view) Losses(ctx context.Context) (pando.Losses, error) { return v.a.Losses(ctx) }

func (v view) LeasesLost() uint64 { return v.a.leasesLost.Load() }

func (v view) Shares() int { return v.a.announce.Shares() }
