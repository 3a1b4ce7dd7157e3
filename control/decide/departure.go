package decide

import (
	"cmp"
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
func (d *Draft) leaveHosts() {
	due := d.dueToLeave()
	d.endShift(due)
	if len(due) == 0 || d.svc.Renew != nil { // a restart starts elsewhere too
		return
	}
	if o := d.obstacleOn(due[0].Host); o.why != "" {
		d.noteObstacle(due[0].Host, o)
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
			d.takeForRestart(i, d.leaveReason(i)+"; it is "+string(i.Phase))
		}
	}
	if len(serving) == 0 {
		return
	}
	why := d.leaveReason(serving[0])
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

// dueToLeave returns the instances of the service that have to leave their hosts and have not begun to.
func (d *Draft) dueToLeave() (out []pando.Instance) {
	if len(d.w.Drained) == 0 && d.svc.Shift == nil || d.svc.Removing {
		return nil
	}
	for _, i := range d.crew.all {
		if d.mustLeave(i) && d.here(i.Host) && i.Phase.May(pando.PhaseDraining) &&
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

// obstacleOn returns what keeps the service on a drained host.
func (d *Draft) obstacleOn(h pando.HostName) obstacle {
	s := d.newest()
	_, pushed := d.w.Heads[d.svc.ServiceKey]
	pending := fmt.Sprintf("`pando why %s --pending` explains each host", d.svc.ServiceKey)
	switch {
	case s.Stateful():
		return obstacle{fmt.Sprintf("the volumes of its ordinals are on %s and do not move; once that host "+
			"is down, `pando recover %s --move ORDINAL` starts an ordinal anew elsewhere", h,
			d.svc.ServiceKey), true}
	case len(s.Volumes) > 0:
		return obstacle{fmt.Sprintf("its volumes are on %s and do not move; `pando cp` copies their files "+
			"out, and after `pando rm %s` and `pando volume rm` a deploy begins elsewhere", h,
			d.svc.ServiceKey), true}
	case d.keeper.Host != "" && d.home() != "" && Drained(d.w, d.keeper.Host):
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

// noteObstacle records once per drain that the service stays on a drained host.
func (d *Draft) noteObstacle(h pando.HostName, o obstacle) {
	if !o.stays || !Drained(d.w, h) {
		d.lookAgain(d.now.Add(RoomLook)) // no event reports the end of some obstacles
		return
	}
	reason := fmt.Sprintf("it stays on %s, which is drained since %s: %s", h,
		d.w.Members[h].V.Drain.At.UTC().Format(time.RFC3339), o.why)
	if !slices.ContainsFunc(d.decisions, func(v pando.Decision) bool { return v.Reason == reason }) {
		d.record(pando.DecidedHostDrain, "", reason, nil)
	}
	d.lookAgain(d.now.Add(RoomLook))
}

// movers returns the number of instances that have to be at a new home before those on a drained
// host leave: as many as serve there.
func (d *Draft) movers() (n int) {
	home := d.home()
	if home == "" || Drained(d.w, home) {
		return 0
	}
	for _, i := range d.dueToLeave() {
		if i.Host != home && i.Capacity() {
			n++
		}
	}
	return n
}

// servingElsewhere returns the number of instances that serve on a host that the service leaves, and
// do not count at its new home.
func (d *Draft) servingElsewhere() (n int) {
	if d.movers() == 0 {
		return 0
	}
	home := d.home()
	for _, i := range d.dueToLeave() {
		if i.Host != home && i.Phase == pando.PhaseInRotation && !i.Warm {
			n++
		}
	}
	return n
}

// widened returns the range of a service that moves from a drained host.
func (d *Draft) widened(r scale.Range) scale.Range {
	if n := min(d.movers(), r.Most); n > r.Least {
		r.Least, r.Why = n, fmt.Sprintf("%d on the host that it leaves", n)
	}
	return r
}

// moveStartsMax bounds the instances that start at the same time at a new home, while the former one
// still serves.
const moveStartsMax = 8

// inParts returns the range of a service for now: a new home fills up in parts.
func (d *Draft) inParts(r scale.Range) scale.Range {
	if most := d.count().InRotation + moveStartsMax; r.Least > most && d.servingElsewhere() > 0 {
		r.Least = most
	}
	return r
}

// bringHome drains the instances outside the home, once the home serves. Those on a drained host
// serve meanwhile, so they wait until as many are healthy at home.
func (d *Draft) bringHome(r scale.Range) {
	home := d.home()
	if home == "" || d.count().InRotation < r.Least {
		return
	}
	leavers := OnLiveHosts(d.w, d.crew.all)
	if d.movers() > 0 && !d.healthyAtHome() {
		leavers = slices.DeleteFunc(slices.Clone(leavers),
			func(i pando.Instance) bool { return d.mustLeave(i) })
	}
	d.drainAll(lifecycle.BringHome(leavers, home, func(i pando.Instance) string {
		if !d.mustLeave(i) {
			return ""
		}
		return d.leaveReason(i)
	}))
}

// healthyAtHome reports whether every instance that counts has been in rotation for as long as a
// rollout wants it.
func (d *Draft) healthyAtHome() bool {
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

// endShift ends the shift of the service once none of its instances has to leave by it, or if it
// cannot go on. What already runs on the other host stays there.
func (d *Draft) endShift(due []pando.Instance) {
	s := d.svc.Shift
	if s == nil {
		return
	}
	left := slices.IndexFunc(due, s.Moves)
	why := ""
	switch {
	case left < 0:
		why = fmt.Sprintf("the move from %s to %s is complete", s.From, s.To)
	case !TakesNew(d.w, s.To):
		why = fmt.Sprintf("the move to %s is given up: that host takes no new instances", s.To)
	default:
		o := d.obstacleOn(s.From)
		if o.why == "" || !o.stays {
			o.why = d.failing(max(1, d.bounds().Least))
		}
		if o.why == "" {
			return
		}
		why = fmt.Sprintf("the move to %s is given up: %s", s.To, o.why)
	}
	d.svc.Shift = nil
	d.record(pando.DecidedMove, "", why, nil)
}

// Left returns why an instance is still on a drained host, and whether it stays there. d is
// nil for an instance without a service.
func (d *Draft) Left(i pando.Instance) (why string, stays bool) {
	switch {
	case d == nil:
		return "its service has no record", false
	case !d.here(i.Host):
		return "its host is away: it leaves when the host is back", true
	case i.Phase.Leaving() || !i.Phase.May(pando.PhaseDraining):
		return cmp.Or(i.Waits, "it is "+string(i.Phase)), false
	case i.Run != nil:
		return fmt.Sprintf("run %d ends by itself; `pando runs %s --end %[1]d` ends it now",
			i.Run.Number, i.Service), false
	case d.svc.Removing:
		return "its service is being removed", false
	case !Drained(d.w, i.Host):
		return "its host is not drained", false
	}
	if o := d.obstacleOn(i.Host); o.why != "" {
		return o.why, o.stays
	}
	if why := d.failingReplacement(); why != "" {
		return why, false
	}
	return "another one starts in its place", false
}

// failingReplacement returns how the instance fails that is to take the place of another one, again
// and again, with the way out, or "". The other one serves meanwhile, so the service does too.
func (d *Draft) failingReplacement() string {
	if d.svc.Renew == nil && len(d.w.Drained) == 0 || d.svc.Removing {
		return ""
	}
	for _, i := range d.crew.all {
		if !i.Phase.TakesFlows() || i.Warm {
			continue
		}
		what, end := "", ""
		switch {
		case IsRestarted(d.w, d.svc, i):
			what, end = "the restart of "+string(i.ID)+" waits", fmt.Sprintf(
				"`pando restart %s --cancel` ends the restart", d.svc.ServiceKey)
		case Drained(d.w, i.Host):
			what = fmt.Sprintf("%s stays on %s, which is drained", i.ID, i.Host)
			end = fmt.Sprintf("`pando hosts undrain %s` ends the drain", i.Host)
		default:
			continue
		}
		past := d.history()
		w := lifecycle.BackOff(past.failures, d.serving(), 1, past.healed, past.started, d.now)
		if w.Failures < failuresNamed {
			return ""
		}
		return fmt.Sprintf("%s: %s, %d times so far, the last because %s; `pando logs %s` has its output, "+
			"and %s", what, ReplacementFails, w.Failures, w.Last, d.svc.ServiceKey, end)
	}
	return ""
}

// failuresNamed is the number of failures of a replacement from which they are shown.
const failuresNamed = 2
