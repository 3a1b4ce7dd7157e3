package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/spec"
	"pando.run/pando/world"
)

// workRuns takes the runs of the service to their next step (lifecycle.Runs).
func (d *Draft) workRuns() {
	s := d.newest()
	if d.svc.Book == nil && len(d.parts) == 0 && !s.IsJob() || d.forgotten {
		return
	}
	p := lifecycle.Runs(lifecycle.RunCase{
		Spec: s, Revision: d.svc.Target, Book: d.svc.Book, Ends: lifecycle.RunEndsOf(d.localDecisions()),
		Instances: slices.Collect(maps.Values(d.parts)), Removing: d.svc.Removing, Here: d.here,
		Leaving: func(h pando.HostName) bool { return d.w.Hosts[h].V.Leaving },
		After:   timetable(s.Job), Now: d.now, Local: d.localTime,
	})
	d.svc.Book = p.Book
	d.lookAgain(p.Wake)
	slices.SortStableFunc(p.Moves, compareMoves)
	for _, m := range p.Moves {
		switch {
		case m.Note:
			d.record(pando.DecidedRun, "", m.Reason, nil)
		case m.Forget != "":
			d.record(pando.DecidedHostLost, m.Forget, m.Reason, nil)
			d.dropPart(m.Forget)
		case m.Drain != "":
			d.drainPart(m.Drain, m.Reason)
		case d.full():
			return
		default:
			d.startPart(m.Start, m.Reason)
		}
	}
}

// endOnce removes the service of one run that its caller has left behind.
func (d *Draft) endOnce() {
	if d.svc.Removing || d.forgotten {
		return
	}
	over, at := lifecycle.OnceOver(d.newest(), d.svc.Book, d.svc.Asked, d.now, d.localTime)
	d.lookAgain(at)
	if over {
		d.svc.Removing, d.svc.Purge = true, true
		d.record(pando.DecidedRemove, "", "its one run is over, and its caller is gone", nil)
	}
}

// compareMoves puts notes first and starts last, and each kind in an order that no map decides.
func compareMoves(a, b lifecycle.RunMove) int {
	rank := func(m lifecycle.RunMove) int {
		switch {
		case m.Note:
			return 0
		case m.Forget != "":
			return 1
		case m.Drain != "":
			return 2
		}
		return 3
	}
	if r := rank(a) - rank(b); r != 0 || a.Note {
		return r
	}
	switch {
	case a.Forget+a.Drain < b.Forget+b.Drain:
		return -1
	case a.Forget+a.Drain > b.Forget+b.Drain:
		return 1
	}
	return a.Start - b.Start
}

// timetable returns the times of a job's schedule. A schedule that this build cannot read has none.
func timetable(j pando.Job) func(time.Time) time.Time {
	s, err := spec.ReadSchedule(j.Schedule, j.Zone)
	if err != nil {
		return func(time.Time) time.Time { return time.Time{} }
	}
	return s.After
}

// startPart places one more instance of a run.
func (d *Draft) startPart(number int, reason string) {
	r := &d.svc.Book.Runs[d.svc.Book.Find(number)]
	s, known := d.spec(r.Revision)
	if !known {
		d.lookAgain(d.now.Add(PartLook))
		return
	}
	host, why, err := d.choose(s, "", nil)
	if err != nil {
		r.Reason = err.Error() // for whoever waits for the run
		d.lookAgain(d.now.Add(PartLook))
		return
	}
	i := d.grant(pando.VerbReplicate, reason)
	o := pando.Instance{
		ID: d.name(i), Service: d.svc.ServiceKey, Host: host.Name, Revision: r.Revision,
		SpecHash: d.hashOf(r.Revision), Weight: 100,
		Role: pando.RoleReplica, Phase: pando.PhasePlaced, Reason: reason, Intent: i.ID, Born: d.birth(),
		Since: d.now, Run: &pando.RunPart{
			Number: number, Command: r.Command, Attached: r.Attached, Beside: !s.IsJob(),
		},
	}
	if s.Ordinals() {
		o.Ordinal = d.partOrdinal(o)
	}
	d.svc.Sizes = pando.KeepSizes(d.svc.Sizes, s, o.Ordinal)
	i.Instance, i.Host, d.starts = o.ID, host.Name, true
	i.Inputs = map[string]float64{lifecycle.Revision: float64(r.Revision),
		lifecycle.Run: float64(number)}
	d.putIntent(i.Become(pando.IntentPlaced, d.now, why))
	d.putPart(o)
	d.addLoad(o)
	d.taken = d.taken.Plus(scale.Of(1, s.Resources))
}

// PartLook is the time between two attempts to place an instance of a run that found no host.
const PartLook = 2 * time.Second

// partOrdinal returns the volumes of a new instance of a run: its own in a job, and those of the
// first instance of a service.
func (d *Draft) partOrdinal(i pando.Instance) int {
	if i.Run.Beside {
		return 1
	}
	held := map[int]bool{}
	for _, o := range d.parts {
		if lifecycle.HasVolumes(o) {
			held[o.Ordinal] = true
		}
	}
	return lifecycle.Ordinal(func(n int) bool { return held[n] })
}

// judgeRuns sets the phase of a job from its runs.
func (d *Draft) judgeRuns() {
	if d.svc.Current != d.svc.Target {
		d.putRevision(d.svc.Current, pando.RevisionRetired, "a newer one was deployed")
		d.putRevision(d.svc.Target, pando.RevisionCurrent, "its runs begin")
		d.svc.Current, d.svc.Rolling, d.svc.Trial = d.svc.Target, 0, nil
	}
	d.svc.Phase, d.svc.Reason = lifecycle.JudgeJob(d.svc.Book, d.newest().Job)
	if d.svc.Phase != pando.ServiceRunning {
		return
	}
	needs := ""
	if len(d.parts) == 0 {
		needs = cmp.Or(d.unmet(), d.unlent())
	}
	if needs != "" {
		d.lookAgain(d.now.Add(lifecycle.NeedsLook(d.now.Sub(d.localTime(d.svc.Asked)))))
	}
	if why := cmp.Or(needs, d.hostless(), d.runsWait()); why != "" {
		d.svc.Reason += ": " + why
	}
}

// runsWait returns why an instance of a run waits for a host, or "".
func (d *Draft) runsWait() string {
	for _, r := range d.svc.Book.Runs {
		if r.Active() && r.Reason != "" {
			return r.Reason
		}
	}
	return ""
}

// putPart writes an instance of a run.
func (d *Draft) putPart(i pando.Instance) {
	d.conds[i.Key()] = pando.Condition{Key: i.Key(), Modified: d.w.Instances[i.ID].Modified}
	d.puts[i.Key()] = i
	d.parts[i.ID] = i
}

// drainPart ends an instance of a run.
func (d *Draft) drainPart(id pando.InstanceID, reason string) {
	i, ok := d.parts[id]
	if !ok || d.fresh(id) {
		return
	}
	halt := d.grant(pando.VerbHalt, reason)
	halt.Instance, halt.Host = i.ID, i.Host
	d.putIntent(halt.Become(pando.IntentDraining, d.now, reason))
	i.Halt, i.Walk = halt.ID, true
	d.putPart(i.Become(pando.PhaseDraining, d.now, reason))
}

// dropPart deletes the record of an instance of a run.
func (d *Draft) dropPart(id pando.InstanceID) {
	v := d.w.Instances[id]
	d.deletes = append(d.deletes, v.V.Key())
	d.conds[v.V.Key()] = v.If()
	delete(d.parts, id)
}

// CheckRuns returns nil unless the runs of a service stand against a new spec.
func CheckRuns(w *world.World, svc pando.Service, key pando.ServiceKey, s pando.Spec) error {
	known, ok := w.SpecOf(key, svc.Target)
	switch {
	case ok && known.Kind != s.Kind:
		return fmt.Errorf("%w: kind: it is %s already, and jobs, ordinals and their volumes stay as "+
			"they are; deploy it under another name, or `pando rm --purge %s` first", pando.ErrRefused,
			cmp.Or(string(known.Kind), "a service of equal instances"), key)
	case s.IsJob() && s.Job.Schedule == "" && svc.Book.Active() >= pando.RunsMax:
		return fmt.Errorf("%w: %d runs are in progress, and more than that never are; `pando runs %s` "+
			"lists them", pando.ErrRefused, svc.Book.Active(), key)
	}
	return nil
}

// BookAfter returns the book of a service after the deploy of a revision, which starts a run of a
// job without a schedule.
func BookAfter(svc pando.Service, r pando.Revision) *pando.RunBook {
	if !r.Spec.IsJob() || r.Spec.Job.Schedule != "" {
		return svc.Book
	}
	run := lifecycle.NewRun(r.Spec, svc.Latest, r.At)
	run.By = r.By
	return svc.Book.With(run)
}
