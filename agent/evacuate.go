package agent

import (
	"context"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/world"
)

// settleMax is the time that an instance may take to merge and end, beyond its drain and its stop.
const settleMax = 5 * time.Second

// orderWaitMax is how long a leaving host waits until control orders its instances to end. When the
// leader dies, the next one gives orders only after a lease and an election.
const orderWaitMax = 20 * time.Second

// leaveLook is the time between two counts of the instances left. The last step of an instance
// changes no record, so no watch reports it.
const leaveLook = 20 * time.Millisecond

// Leave empties this host. Control places no further instances on it and drains those that run.
// Their connections may last for drain. Then the agent stops the instances as their specs define
// and merges their states. The time begins once control has ordered all of them to leave. Leave
// returns the number of instances that remain. Only a new agent accepts instances again.
func (a *Agent) Leave(ctx context.Context, drain time.Duration) (left int, err error) {
	from := func() (bound time.Time) { // connections have the time drain from now on
		a.leaveBy = a.config.Clock.Now().Add(drain)
		return a.leaveBy.Add(settleMax + a.longestStop(a.records.World))
	}
	a.records.Lock()
	orderBy, begun := a.config.Clock.Now().Add(orderWaitMax), false
	bound := from()
	a.records.Unlock()
	writes, cancel := context.WithTimeout(ctx, settleMax)
	defer cancel()
	a.crews.WakeAll()                             // drains end at leaveBy at the latest
	if _, err := a.joinOnce(writes); err != nil { // sets Leaving in the host's record
		return a.here(), err
	}
	for {
		changed := a.records.News()
		a.records.Lock()
		host, joined := a.records.World.Hosts[a.config.Host.Name]
		begun = begun || ordered(a.records.World, a.crews.AllIn(a.records.World))
		if !begun && a.config.Clock.Now().Before(orderBy) {
			bound = from()
		}
		left = len(a.crews.ByName)
		a.records.Unlock()
		if joined && host.V.Leaving && left == 0 && a.announce.HandedOver() && a.routes.IsQuiet() ||
			a.config.Clock.Now().After(bound) {
			return left, nil
		}
		if err := a.records.AwaitChange(ctx, changed, leaveLook); err != nil {
			return left, err
		}
	}
}

// ordered reports whether every instance of some runners has the order to leave.
func ordered(w *world.World, all []*runner.Runner) bool {
	return !slices.ContainsFunc(all, func(r *runner.Runner) bool {
		v, known := w.Instances[r.Shown.Instance.ID]
		return known && !v.V.Phase.Leaving()
	})
}

// leavesBy returns the deadline for connections when the host leaves, or zero if it stays.
func (a *Agent) leavesBy() time.Time {
	a.records.Lock()
	defer a.records.Unlock()
	return a.leaveBy
}

func (a *Agent) here() int {
	a.records.Lock()
	defer a.records.Unlock()
	return len(a.crews.ByName)
}

// longestStop returns the longest stop time of any instance here.
func (a *Agent) longestStop(w *world.World) (most time.Duration) {
	for _, r := range a.crews.AllIn(w) {
		spec, _ := w.SpecOf(r.Service, r.Shown.Instance.Revision)
		most = max(most, pando.Seconds(spec.StopSeconds))
	}
	return most
}
