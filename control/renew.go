package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// Restart implements pando.Operators. The mark in the service's record names the instances that
// leave, so that a new leader continues.
func (c *operators) Restart(
	ctx context.Context, s pando.ServiceKey, ask pando.RestartAsk, by pando.Asker,
) (pando.ServiceStatus, error) {
	err := c.edit(ctx, s, by, func(svc *pando.Service, _ time.Time) (*pando.Decision, error) {
		if ask.Cancel {
			if svc.Renew == nil {
				return nil, nil
			}
			svc.Renew = nil
			return &pando.Decision{Kind: pando.DecidedRestart, By: by,
				Reason: "an operator ends the restart; the instances that are left stay"}, nil
		}
		return c.beginRestart(svc, ask.Instance, by)
	})
	if err != nil {
		return pando.ServiceStatus{}, err
	}
	return c.Service(ctx, s)
}

// beginRestart marks the instances of a service that leave. The caller holds the lock.
func (c *operators) beginRestart(
	svc *pando.Service, only pando.InstanceID, by pando.Asker,
) (*pando.Decision, error) {
	s := svc.ServiceKey
	spec, _ := c.world.SpecOf(s, svc.Target)
	next := pando.Renewal{}
	var due []pando.InstanceID
	for _, i := range c.world.Of(s) {
		next.Before = max(next.Before, c.world.CreatedOf(i.Key()))
		if (i.Warm || i.Capacity()) && (only == "" || i.ID == only) {
			due = append(due, i.ID)
		}
	}
	switch {
	case svc.Removing:
		return nil, fmt.Errorf("%w: %s is being removed", pando.ErrRefused, s)
	case spec.IsJob():
		return nil, fmt.Errorf("%w: %s is a job, whose instances end by themselves; `pando run %[2]s` "+
			"runs it again", pando.ErrRefused, s)
	case svc.Current != svc.Target && svc.Current != 0:
		return nil, fmt.Errorf("%w: a rollout of %s replaces its instances already; `pando rollout "+
			"status %[2]s` shows it", pando.ErrRefused, s)
	case only != "" && svc.Renew != nil && len(svc.Renew.Only) == 0:
		return nil, nil // the restart in progress has the instance too
	case len(due) == 0 && only != "":
		return nil, fmt.Errorf("instance %s of %s: %w, or it leaves already; `pando ps` lists the "+
			"instances", only, s, pando.ErrNotFound)
	case len(due) == 0:
		return nil, fmt.Errorf("%w: %s has no instance to restart", pando.ErrRefused, s)
	}
	reason := fmt.Sprintf("an operator restarts its %d instances", len(due))
	if only != "" {
		reason = fmt.Sprintf("an operator restarts %s", only)
		if svc.Renew != nil {
			next.Only = slices.Clone(svc.Renew.Only)
		}
		if !slices.Contains(next.Only, only) {
			next.Only = append(next.Only, only)
		}
		if len(next.Only) > pando.RenewalMax {
			return nil, fmt.Errorf("%w: %d instances of %s restart already; `pando restart %[3]s` restarts "+
				"all", pando.ErrRefused, pando.RenewalMax, s)
		}
	}
	svc.Renew = &next
	return &pando.Decision{Kind: pando.DecidedRestart, Instance: only, By: by, Reason: reason}, nil
}

// due returns the instances that a restart has still to replace.
func (d *draft) due() (out []pando.Instance) {
	for _, i := range d.crew.all {
		if restarts(d.w, d.svc, i) {
			out = append(out, i)
		}
	}
	return out
}

// renew takes the next steps of a restart. A service that starts first gets a new instance beside
// the old one, which drains once the new one is healthy (relieve). A service that stops first loses
// one instance at a time, and restored brings the number back. An instance that serves nobody leaves
// at once.
func (d *draft) renew() {
	if d.svc.Renew == nil {
		return
	}
	due := d.due()
	if len(due) == 0 {
		if !d.steady() {
			return // the last of them has no successor yet
		}
		d.svc.Renew = nil
		d.record(pando.DecidedRestart, "", "the restart is complete", nil)
		return
	}
	serving := due[:0]
	for _, i := range due {
		switch {
		case i.Phase.TakesFlows() && !i.Warm:
			serving = append(serving, i)
		case i.Phase.May(pando.PhaseDraining) && !d.full():
			d.takeForRestart(i, "an operator restarts it, and it serves nobody")
		}
	}
	if spec := d.newest(); spec.Stateful() || spec.Ordinals() || d.stopFirst() {
		d.renewStopFirst(serving, "an operator restarts it: it ends before another one starts in its place")
		return
	}
	d.renewStartFirst(serving, "an operator restarts it")
}

// takeForRestart drains an instance, and notes the number to come back to. The ordinals of a
// stateful service come back by themselves.
func (d *draft) takeForRestart(i pando.Instance, reason string) {
	if !d.newest().Stateful() && !i.Warm {
		d.svc.Rolling = max(d.svc.Rolling, d.count().Capacity)
	}
	d.drain(i.ID, reason)
}

// steady reports whether as many instances as there have to be are in rotation, and no other one is
// on its way or ends. A change of an instance or of the service leads to another look.
func (d *draft) steady() bool {
	return d.count().Capacity >= max(d.bounds().Least, d.svc.Rolling) &&
		!slices.ContainsFunc(d.crew.all, func(i pando.Instance) bool {
			return i.Capacity() && i.Phase != pando.PhaseInRotation
		})
}

// renewStopFirst ends one instance, and notes the number to come back to.
func (d *draft) renewStopFirst(due []pando.Instance, why string) {
	ends := slices.ContainsFunc(d.crew.all, func(i pando.Instance) bool { return !i.Warm && !i.Capacity() })
	if ends || len(due) == 0 || !d.steady() || d.full() {
		return // its change leads here again
	}
	d.takeForRestart(due[0], why)
}

// renewStartFirst starts instances in place of others, within the surge.
func (d *draft) renewStartFirst(due []pando.Instance, why string) {
	replaced := map[pando.InstanceID]bool{}
	for _, i := range d.reachable() {
		if i.Replaces != "" && i.Capacity() {
			replaced[i.Replaces] = true
		}
	}
	spec, known := d.spec(d.serving())
	room := max(1, spec.Rollout.Surge) - swapping(d.reachable())
	for _, i := range due {
		if replaced[i.ID] {
			continue
		}
		if room--; room < 0 || !known || d.full() || !d.mayStart(d.serving(), d.count().Capacity+1) {
			return
		}
		d.replaces = i.ID
		d.placeNew(d.grant(pando.VerbReplicate,
			fmt.Sprintf("in place of %s: %s", i.ID, why)), d.serving(), d.role(), false)
		d.replaces = ""
	}
}

// relieve drains the instances that others have replaced.
func (d *draft) relieve() {
	for _, i := range slices.Clone(d.reachable()) {
		if i.Replaces == "" || i.Phase != pando.PhaseInRotation {
			continue
		}
		o, ok := d.crew.get(i.Replaces)
		if !ok || !o.Capacity() || d.full() {
			continue
		}
		why, asked := "the spread becomes even", true
		switch {
		case d.svc.Renew != nil:
			why = "an operator restarts the service"
		case depart(d).moves(o):
			why = depart(d).reason(o)
		default:
			asked = false
		}
		if asked && !depart(d).healthy(i) {
			continue
		}
		d.drain(o.ID, fmt.Sprintf("%s takes its place: %s", i.ID, why))
	}
}

// swapping returns how many instances are on their way to replace another one, which still counts.
func swapping(all []pando.Instance) (n int) {
	counts := map[pando.InstanceID]bool{}
	for k := range all {
		counts[all[k].ID] = all[k].Capacity()
	}
	for k := range all {
		if i := &all[k]; i.Replaces != "" && counts[i.ID] && counts[i.Replaces] {
			n++
		}
	}
	return n
}

// departure moves instances of a service away from hosts that they have to leave: drained ones, and
// the loaded one of a shift.
type departure struct{ d *draft }

// depart returns the departure of a decision.
func depart(d *draft) departure { return departure{d} }

// step takes the next step away from drained hosts, and of a shift. Instances of a service that spreads are
// replaced one by one, as a restart does it. A service with a home moves as a whole: its first
// instance elsewhere moves the home, hold fills the new home up, and bringHome drains what is left.
// A service that stops first loses an instance before another one starts. What cannot move stays.
func (p departure) step() {
	d := p.d
	due := p.due()
	p.endShift(due)
	if len(due) == 0 || d.svc.Renew != nil { // a restart starts elsewhere too
		return
	}
	if o := p.obstacle(due[0].Host); o.why != "" {
		p.note(due[0].Host, o)
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
			d.takeForRestart(i, p.reason(i)+", and it serves nobody")
		}
	}
	if len(serving) == 0 {
		return
	}
	why := p.reason(serving[0])
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

// reason returns why an instance leaves its host.
func (p departure) reason(i pando.Instance) string {
	d := p.d
	if s := d.svc.Shift; s.Moves(i) && !drained(d.w, i.Host) {
		return fmt.Sprintf("%s is less loaded than its host %s", s.To, i.Host)
	}
	return fmt.Sprintf("its host %s is drained", i.Host)
}

// moves reports whether an instance has to leave its host.
func (p departure) moves(i pando.Instance) bool {
	d := p.d
	return drained(d.w, i.Host) || d.svc.Shift.Moves(i)
}

// due returns the instances of the service that have to leave their hosts and have not begun to.
func (p departure) due() (out []pando.Instance) {
	d := p.d
	if len(d.w.Drained) == 0 && d.svc.Shift == nil || d.svc.Removing {
		return nil
	}
	for _, i := range d.crew.all {
		if p.moves(i) && d.here(i.Host) && i.Phase.May(pando.PhaseDraining) &&
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
func (p departure) obstacle(h pando.HostName) obstacle {
	d := p.d
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
	home := cmp.Or(target(d.placer), d.home())
	_, _, err := lifecycle.Place(d.choices(home), d.wish(spec, home, d.fellows(d.serving(), false)))
	if err != nil {
		return obstacle{err.Error(), true}
	}
	return obstacle{}
}

// note records once per drain that the service stays on a drained host.
func (p departure) note(h pando.HostName, o obstacle) {
	d := p.d
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
func (p departure) movers() (n int) {
	d := p.d
	home := d.home()
	if home == "" || drained(d.w, home) {
		return 0
	}
	for _, i := range p.due() {
		if i.Host != home && i.Capacity() {
			n++
		}
	}
	return n
}

// servingElsewhere returns the number of instances that serve on a host that the service leaves, and
// do not count at its new home.
func (p departure) servingElsewhere() (n int) {
	d := p.d
	if p.movers() == 0 {
		return 0
	}
	home := d.home()
	for _, i := range p.due() {
		if i.Host != home && i.Phase == pando.PhaseInRotation && !i.Warm {
			n++
		}
	}
	return n
}

// widened returns the range of a service that moves from a drained host.
func (p departure) widened(r scale.Range) scale.Range {
	if n := min(p.movers(), r.Most); n > r.Least {
		r.Least, r.Why = n, fmt.Sprintf("%d on the host that it leaves", n)
	}
	return r
}

// bringHome drains the instances outside the home, once the home serves. Those on a drained host
// serve meanwhile, so they wait until as many are healthy at home.
func (p departure) bringHome(r scale.Range) {
	d := p.d
	home := d.home()
	if home == "" || d.count().InRotation < r.Least {
		return
	}
	leavers := leased(d.w, d.crew.all)
	if p.movers() > 0 && !p.healthyAtHome() {
		leavers = slices.DeleteFunc(slices.Clone(leavers),
			func(i pando.Instance) bool { return p.moves(i) })
	}
	d.drainAll(lifecycle.BringHome(leavers, home, func(i pando.Instance) string {
		if !p.moves(i) {
			return ""
		}
		return p.reason(i)
	}))
}

// healthyAtHome reports whether every instance that counts has been in rotation for as long as a
// rollout wants it.
func (p departure) healthyAtHome() bool {
	d := p.d
	for _, i := range d.reachable() {
		if !i.Capacity() || i.Warm {
			continue
		}
		if i.Phase != pando.PhaseInRotation || !p.healthy(i) {
			return false
		}
	}
	return true
}

// healthy reports whether an instance has been in rotation for as long as a rollout wants it. If
// not, it schedules another look.
func (p departure) healthy(i pando.Instance) bool {
	d := p.d
	spec, _ := d.spec(i.Revision)
	at := d.local(i).Since.Add(pando.Seconds(spec.Rollout.HealthySeconds))
	if d.now.Before(at) {
		d.lookAgain(at)
		return false
	}
	return true
}

// endShift ends the shift of the service once none of its instances has to leave by it, or if it
// cannot go on. What already runs on the other host stays there.
func (p departure) endShift(due []pando.Instance) {
	d := p.d
	s := d.svc.Shift
	if s == nil {
		return
	}
	left := slices.IndexFunc(due, s.Moves)
	why := ""
	switch {
	case left < 0:
		why = fmt.Sprintf("the move from %s to %s is complete", s.From, s.To)
	case !takesNew(d.w, s.To):
		why = fmt.Sprintf("the move to %s is given up: that host takes no new instances", s.To)
	default:
		o := p.obstacle(s.From)
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

// left returns why an instance is still on a drained host, and whether it stays there. d is
// nil for an instance without a service.
func (p departure) left(i pando.Instance) (why string, stays bool) {
	d := p.d
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
	if o := p.obstacle(i.Host); o.why != "" {
		return o.why, o.stays
	}
	if why := p.failing(); why != "" {
		return why, false
	}
	return "another one starts in its place", false
}

// failing returns how the instance fails that is to take the place of another one, again
// and again, with the way out, or "". The other one serves meanwhile, so the service does too.
func (p departure) failing() string {
	d := p.d
	if d.svc.Renew == nil && len(d.w.Drained) == 0 || d.svc.Removing {
		return ""
	}
	for _, i := range d.crew.all {
		if !i.Phase.TakesFlows() || i.Warm {
			continue
		}
		what, end := "", ""
		switch {
		case restarts(d.w, d.svc, i):
			what, end = "the restart of "+string(i.ID)+" waits", fmt.Sprintf(
				"`pando restart %s --cancel` ends the restart", d.svc.ServiceKey)
		case drained(d.w, i.Host):
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
			"and %s", what, replacementFails, w.Failures, w.Last, d.svc.ServiceKey, end)
	}
	return ""
}

// failuresNamed is the number of failures of a replacement from which they are shown.
const failuresNamed = 2
