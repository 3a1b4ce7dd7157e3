package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// leaveHosts takes the next step away from drained hosts, and of a shift. Instances of a service that spreads are
// replaced one by one, as a restart does it. A service with a home moves as a whole: its first
// instance elsewhere moves the home, hold fills the new home up, and bringHome drains what is left.
// A service that stops first loses an instance before another one starts. What cannot move stays.
func (d *draft) leaveHosts() {
	due := d.leavers()
	d.endShift(due)
	if len(due) == 0 || d.svc.Renew != nil { // a restart starts elsewhere too
		return
	}
	if o := d.obstacle(due[0].Host); o.why != "" {
		d.noteStay(due[0].Host, o)
		return
	}
	if d.newest().Place.Spread == "" && d.home() != "" {
		return // it has moved: hold and bringHome do the rest
	}
	serving := due[:0]
	for _, i := range due {
		switch {
		case i.Phase.TakesFlows() && !i.Warm:
			serving = append(serving, i)
		case !d.full():
			d.takeForRestart(i, d.reasonToLeave(i)+", and it serves nobody")
		}
	}
	if len(serving) == 0 {
		return
	}
	why := d.reasonToLeave(serving[0])
	switch {
	case d.newest().Ordinals() || d.stopFirst():
		d.renewStopFirst(serving, why+": it ends before another one starts in its place")
	case d.spreads():
		d.renewStartFirst(serving, why)
	case d.mayStart(d.serving(), d.count().Capacity+1) && !d.full():
		d.placeNew(d.grant(pando.VerbReplicate, fmt.Sprintf("in place of %s: %s", serving[0].ID, why)),
			d.serving(), d.role(), false)
	}
}

// reasonToLeave returns why an instance leaves its host.
func (d *draft) reasonToLeave(i pando.Instance) string {
	if s := d.svc.Shift; s.Moves(i) && !drained(d.w, i.Host) {
		return fmt.Sprintf("%s is less loaded than its host %s", s.To, i.Host)
	}
	return fmt.Sprintf("its host %s is drained", i.Host)
}

// leaves reports whether an instance has to leave its host.
func (d *draft) leaves(i pando.Instance) bool {
	return drained(d.w, i.Host) || d.svc.Shift.Moves(i)
}

// leavers returns the instances of the service that have to leave their hosts and have not begun to.
func (d *draft) leavers() (out []pando.Instance) {
	if len(d.w.Drained) == 0 && d.svc.Shift == nil || d.svc.Removing {
		return nil
	}
	for _, i := range d.crew.all {
		if d.leaves(i) && d.here(i.Host) && i.Phase.May(pando.PhaseDraining) &&
			(i.Warm || i.Capacity()) {
			out = append(out, i)
		}
	}
	return out
}

// obstacle is why an instance is still on a drained host.
type obstacle struct {
	why   string // "": it may leave now
	stays bool   // nothing changes that but an operator
}

// obstacle returns what keeps the service on a drained host.
func (d *draft) obstacle(h pando.HostName) obstacle {
	s := d.newest()
	_, pushed := d.w.Heads[d.svc.ServiceKey]
	pending := fmt.Sprintf("`pando why %s --pending` explains each host", d.svc.ServiceKey)
	switch {
	case s.Stateful():
		return obstacle{fmt.Sprintf("the volumes of its ordinals are on %s", h), true}
	case len(s.Volumes) > 0:
		return obstacle{fmt.Sprintf("its volumes are on %s", h), true}
	case d.keeper.Host != "" && d.home() != "" && drained(d.w, d.keeper.Host):
		return obstacle{fmt.Sprintf("no other host has a whole copy of its state yet; %s", pending), false}
	case d.keeper.Host == "" && (pushed || len(s.State) > 0):
		return obstacle{fmt.Sprintf("its state is on %s; `state: {copies: 2}` in its spec lets it move",
			h), true}
	case d.rolling() && d.svc.Paused():
		return obstacle{fmt.Sprintf("its rollout is paused; `pando rollout resume %s` continues it",
			d.svc.ServiceKey), true}
	case d.rolling():
		return obstacle{"its rollout comes first", false}
	case len(d.fitting()) == 0:
		return obstacle{"no other host takes its instances; " + pending, true}
	}
	if why := d.waits(); why != "" {
		return obstacle{why, false}
	}
	spec, known := d.spec(d.serving())
	if !known {
		return obstacle{"the spec of its revision has not arrived", false}
	}
	home := cmp.Or(d.target(), d.home())
	_, _, err := lifecycle.Place(d.choices(home), d.wish(spec, home, d.fellows(d.serving(), false)))
	if err != nil {
		return obstacle{err.Error(), true}
	}
	return obstacle{}
}

// noteStay records once per drain that the service stays on a drained host.
func (d *draft) noteStay(h pando.HostName, o obstacle) {
	if !o.stays || !drained(d.w, h) {
		d.lookAgain(d.now.Add(roomLook)) // no event reports the end of some obstacles
		return
	}
	reason := fmt.Sprintf("it stays on %s, which is drained since %s: %s", h,
		d.w.Members[h].V.Drain.At.UTC().Format(time.RFC3339), o.why)
	if !slices.ContainsFunc(d.decisions, func(v pando.Decision) bool { return v.Reason == reason }) {
		d.record(pando.DecidedHostDrain, "", reason, nil)
	}
	d.lookAgain(d.now.Add(roomLook))
}

// movers returns the number of instances that have to be at a new home before those on a drained
// host leave: as many as serve there.
func (d *draft) movers() (n int) {
	home := d.home()
	if home == "" || drained(d.w, home) {
		return 0
	}
	for _, i := range d.leavers() {
		if i.Host != home && i.Capacity() {
			n++
		}
	}
	return n
}

// servingElsewhere returns the number of instances that serve on a host that the service leaves, and
// do not count at its new home.
func (d *draft) servingElsewhere() (n int) {
	if d.movers() == 0 {
		return 0
	}
	home := d.home()
	for _, i := range d.leavers() {
		if i.Host != home && i.Phase.TakesFlows() && !i.Warm {
			n++
		}
	}
	return n
}

// withMovers returns the range of a service that moves from a drained host.
func (d *draft) withMovers(r scale.Range) scale.Range {
	if n := min(d.movers(), r.Most); n > r.Least {
		r.Least, r.Why = n, fmt.Sprintf("%d on the host that it leaves", n)
	}
	return r
}

// bringHome drains the instances outside the home, once the home serves. Those on a drained host
// serve meanwhile, so they wait until as many are healthy at home.
func (d *draft) bringHome(r scale.Range) {
	home := d.home()
	if home == "" || d.count().Serving < r.Least {
		return
	}
	leavers := leased(d.w, d.crew.all)
	if d.movers() > 0 && !d.healthyAtHome() {
		leavers = slices.DeleteFunc(slices.Clone(leavers),
			func(i pando.Instance) bool { return d.leaves(i) })
	}
	d.drainAll(lifecycle.BringHome(leavers, home, func(i pando.Instance) string {
		if !d.leaves(i) {
			return ""
		}
		return d.reasonToLeave(i)
	}))
}

// healthyAtHome reports whether every instance that counts has been in rotation for as long as a
// rollout wants it.
func (d *draft) healthyAtHome() bool {
	for _, i := range d.reachable() {
		if !i.Capacity() || i.Warm {
			continue
		}
		if i.Phase != pando.PhaseInRotation || !d.healthy(i) {
			return false
		}
	}
	return true
}

// healthy reports whether an instance has been in rotation for as long as a rollout wants it. If
// not, it schedules another look.
func (d *draft) healthy(i pando.Instance) bool {
	spec, _ := d.spec(i.Revision)
	at := d.local(i).Since.Add(pando.Seconds(spec.Rollout.HealthySeconds))
	if d.now.Before(at) {
		d.lookAgain(at)
		return false
	}
	return true
}

// DrainHost implements pando.HostOperators. The mark is a part of the membership and ends with it.
func (c *members) DrainHost(
	ctx context.Context, h pando.HostName, keep time.Duration, by pando.Asker,
) (pando.HostDrainStatus, error) {
	if keep < 0 || keep > pando.HostDrainMax {
		return pando.HostDrainStatus{}, fmt.Errorf("%w: a drain for %s: want at most %s", pando.ErrInvalid,
			keep, pando.HostDrainMax)
	}
	now := c.Clock.Now()
	mark := pando.HostDrain{By: by, At: now}
	if keep > 0 {
		mark.Until = now.Add(keep)
	}
	return c.markDrain(ctx, h, &mark)
}

// UndrainHost implements pando.HostOperators.
func (c *members) UndrainHost(
	ctx context.Context, h pando.HostName, _ pando.Asker,
) (pando.HostDrainStatus, error) {
	return c.markDrain(ctx, h, nil)
}

// markDrain writes the mark of a drain, or takes it away.
func (c *members) markDrain(
	ctx context.Context, h pando.HostName, mark *pando.HostDrain,
) (pando.HostDrainStatus, error) {
	for n := 0; ; n++ {
		err := c.putDrain(ctx, h, mark)
		if err == nil {
			return c.HostDrain(ctx, h)
		}
		if !errors.Is(err, pando.ErrConflict) || n == attempts {
			return pando.HostDrainStatus{}, fmt.Errorf("the drain of host %s: %w", h, err)
		}
	}
}

func (c *members) putDrain(ctx context.Context, h pando.HostName, mark *pando.HostDrain) error {
	w, err := c.stored(ctx, pando.MemberKey(h))
	if err != nil {
		return err
	}
	m, ok := w.Members[h]
	switch {
	case !ok:
		return fmt.Errorf("%w; `pando hosts` lists those there are", pando.ErrNotFound)
	case mark == nil && m.V.Drain == nil:
		return nil
	}
	t := pando.Txn{If: []pando.Condition{m.If()}}
	m.V.Drain = mark
	t.Put = []pando.Stored{m.V}
	at, err := c.commitSurely(ctx, t)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took(t, at)
	c.wake()
	return nil
}

// HostDrain implements pando.HostOperators.
func (c *members) HostDrain(
	_ context.Context, h pando.HostName,
) (st pando.HostDrainStatus, err error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	m, member := c.world.Members[h]
	if !member {
		return st, fmt.Errorf("host %s: %w; `pando hosts` lists those there are", h, pando.ErrNotFound)
	}
	return c.hostDrain(m.V), nil
}

// hostDrain returns what is left on a host. The caller holds the lock.
func (c *view) hostDrain(m pando.Member) pando.HostDrainStatus {
	st := pando.HostDrainStatus{Host: m.Name, Drain: m.Drain, Left: []pando.HostLeft{}}
	_, st.Here = c.world.Hosts[m.Name]
	drafts := map[pando.ServiceKey]*draft{}
	on := c.world.On(m.Name)
	slices.SortStableFunc(on, func(a, b pando.Instance) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.ID, b.ID))
	})
	for _, i := range on {
		d, ok := drafts[i.Service]
		if l, known := newLedger(c.world, i.Service, c.Clock.Now(), c.IDs); !ok && known {
			d = &draft{placer: &placer{ledger: l}}
			drafts[i.Service] = d
		}
		left := pando.HostLeft{Service: i.Service, Instance: i.ID}
		if left.Reason, left.Stays = d.leftReason(i); left.Stays {
			st.Stays++
		}
		if st.Count++; len(st.Left) < pando.HostLeftMax {
			st.Left = append(st.Left, left)
		}
	}
	return st
}

// leftReason returns why an instance is still on a drained host, and whether it stays there. d is
// nil for an instance without a service.
func (d *draft) leftReason(i pando.Instance) (why string, stays bool) {
	switch {
	case d == nil:
		return "its service has no record", false
	case i.Phase.Leaving() || !i.Phase.May(pando.PhaseDraining):
		return cmp.Or(i.Waits, "it is "+string(i.Phase)), false
	case i.Run != nil:
		return fmt.Sprintf("run %d ends by itself; `pando runs %s --end %[1]d` ends it now",
			i.Run.Number, i.Service), false
	case d.svc.Removing:
		return "its service is being removed", false
	case !d.here(i.Host):
		return "its host is away: it leaves when the host is back", true
	case !drained(d.w, i.Host):
		return "its host is not drained", false
	}
	if o := d.obstacle(i.Host); o.why != "" {
		return o.why, o.stays
	}
	if why := d.failingReplacement(); why != "" {
		return why, false
	}
	return "another one starts in its place", false
}

// liftDrains ends the drains whose time is over. It returns the time until the next one ends.
func (c *Control) liftDrains(ctx context.Context, fence pando.Fence) time.Duration {
	next := time.Minute
	c.mu.RLock()
	var over []pando.Txn
	now := c.Clock.Now()
	for h := range c.world.Drained {
		at := c.world.DrainEnds(h)
		if at.IsZero() {
			continue
		}
		if wait := at.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		m := c.world.Members[h]
		m.V.Drain = nil
		over = append(over, pando.Txn{If: []pando.Condition{m.If()}, Put: []pando.Stored{m.V}})
	}
	c.mu.RUnlock()
	for _, t := range over {
		m := t.Put[0].(pando.Member)
		if err := c.commit(ctx, fence, t); err != nil {
			c.Log.Warn("the end of a drain could not be written", "host", m.Name, "error", err)
			next = min(next, time.Second)
			continue
		}
		c.Log.Info("the time of a drain is over: the host takes instances again", "host", m.Name)
	}
	return next
}
