package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// Run is the input of a decision that carries the run of the instance that it concerns.
const Run = "run"

// RunEnds counts the instances of one run that ended by themselves.
type RunEnds struct {
	Clean, Failed int
	Last          time.Time // the newest failure
	Why           string    // of that failure
}

// RunEndsOf counts the ended instances of each run.
func RunEndsOf(decisions []pando.Decision) map[int]RunEnds {
	out := map[int]RunEnds{}
	for _, d := range decisions {
		number, of := d.Inputs[Run]
		if !of || !isEnd(d) {
			continue
		}
		e := out[int(number)]
		if cleanExit(d) {
			e.Clean++
		} else {
			e.Failed, e.Last, e.Why = e.Failed+1, d.At, d.Reason
		}
		out[int(number)] = e
	}
	return out
}

// RunCase holds the facts about the runs of a service.
type RunCase struct {
	Spec      pando.Spec // of its target revision
	Revision  int        // of Spec
	Book      *pando.RunBook
	Ends      map[int]RunEnds
	Instances []pando.Instance // of the runs
	Removing  bool
	Here      func(pando.HostName) bool // the host has its lease
	Leaving   func(pando.HostName) bool
	// After returns the next time of the schedule after a time. Zero: there is none.
	After func(time.Time) time.Time
	// Local returns a time of the book on the clock of Now. Nil: one clock wrote all of them.
	Local func(time.Time) time.Time
	Now   time.Time
}

func (c RunCase) local(t time.Time) time.Time {
	if c.Local == nil {
		return t
	}
	return c.Local(t)
}

// RunMove is one change that the runs of a service need. One of its parts is set.
type RunMove struct {
	Start  int              // one more instance of this run
	Drain  pando.InstanceID // ends
	Forget pando.InstanceID // its host is gone
	Note   bool             // Reason is for the record
	Reason string
}

// RunPlan is the next state of the runs of a service.
type RunPlan struct {
	Book  *pando.RunBook
	Moves []RunMove
	Wake  time.Time // zero: after the next change
}

func (p *RunPlan) wake(at time.Time) {
	if p.Wake.IsZero() || at.Before(p.Wake) {
		p.Wake = at
	}
}

func (p *RunPlan) note(format string, about ...any) {
	p.Moves = append(p.Moves, RunMove{Note: true, Reason: fmt.Sprintf(format, about...)})
}

// Runs returns the next steps of the runs of a service. Each call makes every step that is due.
func Runs(c RunCase) RunPlan {
	p := RunPlan{Book: c.Book.Clone()}
	if !c.Removing && c.Spec.IsJob() && c.Spec.Job.Schedule != "" {
		p.schedule(c)
	}
	of := map[int][]pando.Instance{}
	for _, i := range c.Instances {
		of[i.Run.Number] = append(of[i.Run.Number], i)
	}
	for n := range p.Book.Runs {
		r := &p.Book.Runs[n]
		p.lose(c, r, of)
		p.step(c, r, of[r.Number])
		delete(of, r.Number)
	}
	for _, left := range of { // of a run that the book has forgotten
		p.drain(left, "its run has ended")
	}
	return p
}

// lose forgets the instances of a run on hosts that are gone, and drains those on leaving hosts.
// Others take their place, without a retry.
func (p *RunPlan) lose(c RunCase, r *pando.Run, of map[int][]pando.Instance) {
	stay := []pando.Instance{}
	for _, i := range of[r.Number] {
		switch {
		case !c.Here(i.Host):
			p.Moves = append(p.Moves, RunMove{Forget: i.ID,
				Reason: fmt.Sprintf("its host %s is away", i.Host)})
		case c.Leaving(i.Host) && i.Phase.May(pando.PhaseDraining):
			p.drain([]pando.Instance{i}, fmt.Sprintf("its host %s leaves", i.Host))
		default:
			stay = append(stay, i)
			continue
		}
		if runs(i) {
			r.Lost++
		}
	}
	of[r.Number] = stay
}

// runs reports whether an instance of a run may still end with 0.
func runs(i pando.Instance) bool {
	return i.Phase == pando.PhasePlaced || i.Phase == pando.PhaseStarting
}

func (p *RunPlan) drain(all []pando.Instance, reason string) {
	for _, i := range all {
		if i.Phase.May(pando.PhaseDraining) {
			p.Moves = append(p.Moves, RunMove{Drain: i.ID, Reason: reason})
		}
	}
}

// lostMax is how many instances of one run may be lost with their hosts until the run has failed.
const lostMax = 32

// step takes one run to its next state.
func (p *RunPlan) step(c RunCase, r *pando.Run, its []pando.Instance) {
	if !r.Active() {
		p.drain(its, "its run has ended")
		return
	}
	e := c.Ends[r.Number]
	r.Done, r.Failed = e.Clean, e.Failed
	if state, reason := p.outcome(c, r, e); state != "" {
		*r = r.End(state, c.Now, reason)
		p.note("run %d %s: %s", r.Number, state, reason)
		p.drain(its, "its run has ended")
		return
	}
	r.Reason = "" // it waited for a host, and whoever starts it says whether it still does
	live := 0
	for _, i := range its {
		if runs(i) {
			live++
		}
	}
	if wait := runBackOff(e); r.Failed > 0 && c.Now.Before(e.Last.Add(wait)) {
		p.wake(e.Last.Add(wait))
		return
	}
	for n := r.Done + live; n < r.Want; n++ {
		reason := fmt.Sprintf("run %d: %d of %d", r.Number, n+1, r.Want)
		if r.Failed+r.Lost > 0 {
			reason += fmt.Sprintf(", after %d failed and %d lost", r.Failed, r.Lost)
		}
		p.Moves = append(p.Moves, RunMove{Start: r.Number, Reason: reason})
	}
}

// runBackOffMax bounds the wait between two tries of a run, which has few of them.
const runBackOffMax = 15 * time.Second

// runBackOff returns the time from a failure of a run to its next start. It doubles with each.
func runBackOff(e RunEnds) time.Duration {
	if e.Failed > 8 {
		return runBackOffMax
	}
	return min(runBackOffMax, BackOffStep<<e.Failed)
}

// outcome returns the final state of a run with its reason, or "" if it has none yet.
func (p *RunPlan) outcome(
	c RunCase, r *pando.Run, e RunEnds,
) (state pando.RunState, reason string) {
	began := c.local(r.Began)
	deadline := began.Add(pando.Seconds(r.DeadlineSeconds))
	silent := c.local(r.Alive).Add(pando.RunAliveMax)
	took := c.Now.Sub(began).Round(time.Millisecond)
	switch {
	case c.Removing:
		return pando.RunEnded, "the service is being removed"
	case r.Done >= r.Want:
		return pando.RunSucceeded, fmt.Sprintf("%d of %d ended with 0 within %s", r.Done, r.Want, took)
	case r.Failed > r.Retries:
		return pando.RunFailed, fmt.Sprintf("%d failed, and %d may be tried again: %s", r.Failed,
			r.Retries, e.Why)
	case r.Lost > lostMax:
		return pando.RunFailed, fmt.Sprintf("%d were lost with their hosts", r.Lost)
	case r.DeadlineSeconds > 0 && !c.Now.Before(deadline):
		return pando.RunFailed, fmt.Sprintf("its deadline of %s is over, with %d of %d done",
			span.Seconds(r.DeadlineSeconds), r.Done, r.Want)
	case r.Attached && !c.Now.Before(silent):
		return pando.RunEnded, fmt.Sprintf("its caller has been silent for %s", span.Text(pando.RunAliveMax))
	}
	if r.DeadlineSeconds > 0 {
		p.wake(deadline)
	}
	if r.Attached {
		p.wake(silent)
	}
	return "", ""
}

// missesMax bounds the count of missed times at one look.
const missesMax = 10_000

// schedule starts the run that is due, counts those that were missed, and sets the next time.
func (p *RunPlan) schedule(c RunCase) {
	b, job := p.Book, c.Spec.Job
	if b.Schedule != job.Schedule || b.Zone != job.Zone || b.Next.IsZero() {
		b.Schedule, b.Zone, b.Next = job.Schedule, job.Zone, c.After(c.Now)
	}
	var due time.Time
	passed := 0
	for !b.Next.IsZero() && !b.Next.After(c.Now) {
		due = b.Next
		if passed++; passed < missesMax {
			b.Next = c.After(b.Next)
		} else {
			b.Next = c.After(c.Now)
		}
	}
	if passed > 0 {
		p.due(c, due, passed)
	}
	if !p.Book.Next.IsZero() {
		p.wake(p.Book.Next)
	}
}

// due starts the run of the newest of some due times, if it may start.
func (p *RunPlan) due(c RunCase, due time.Time, passed int) {
	late := c.Now.Sub(due)
	active := p.Book.Active()
	why := ""
	switch {
	case late > pando.RunLateMax:
		why = fmt.Sprintf("no server was there at its time, and it is %s late now",
			span.Text(late.Round(time.Second)))
	case active > 0 && c.Spec.Job.Overlap == pando.OverlapForbid:
		why = "an older run is in progress (overlap: forbid)"
	case active >= pando.RunsMax && c.Spec.Job.Overlap == pando.OverlapAllow:
		why = fmt.Sprintf("%d older runs are in progress, and more than %d never are", active,
			pando.RunsMax-1)
	}
	missed := passed - 1
	if why != "" {
		missed = passed
	}
	if missed > 0 {
		p.Book.Missed += missed
		if why == "" {
			why = "no server was there at their times"
		}
		p.note("%d scheduled runs were missed, the newest of %s: %s", missed,
			due.Format(time.DateTime), why)
	}
	if missed == passed {
		return
	}
	if c.Spec.Job.Overlap == pando.OverlapReplace {
		for n := range p.Book.Runs {
			if r := &p.Book.Runs[n]; r.Active() {
				*r = r.End(pando.RunEnded, c.Now, "the next one began (overlap: replace)")
				p.note("run %d ended: %s", r.Number, r.Reason)
			}
		}
	}
	r := NewRun(c.Spec, c.Revision, c.Now)
	r.Due, r.By = due, pando.Asker{Kind: pando.AskerControl, Name: "schedule"}
	p.Book = p.Book.With(r)
	p.note("run %d begins, as scheduled for %s", p.Book.Last, due.Format(time.DateTime))
}

// NewRun returns a run of a job by its spec. It has no number and no author yet.
func NewRun(s pando.Spec, revision int, now time.Time) pando.Run {
	return pando.Run{
		Revision: revision, Began: now, Want: max(1, s.Job.Parallel), Retries: s.Job.Retries,
		DeadlineSeconds: s.Job.DeadlineSeconds,
	}
}

// JudgeJob returns the phase of a job from its runs.
func JudgeJob(b *pando.RunBook, j pando.Job) (pando.ServicePhase, string) {
	newest, any := b.Newest()
	next := ""
	if j.Schedule != "" && b != nil && !b.Next.IsZero() {
		next = "the next run is due at " + b.Next.Format(time.RFC3339)
	}
	for _, r := range slices.Backward(b.Clone().Runs) {
		if r.Active() {
			return pando.ServiceRunning, fmt.Sprintf("run %d: %d of %d ended with 0", r.Number, r.Done,
				r.Want)
		}
	}
	switch {
	case !any && next != "":
		return pando.ServiceScheduled, next
	case !any:
		return pando.ServiceScheduled, "no run has begun"
	}
	reason := fmt.Sprintf("run %d %s: %s", newest.Number, newest.State, newest.Reason)
	if next != "" {
		reason += "; " + next
	}
	switch {
	case newest.State == pando.RunFailed:
		return pando.ServiceFailed, reason
	case next != "":
		return pando.ServiceScheduled, reason
	}
	return pando.ServiceCompleted, reason
}

// RememberedRuns adds the decisions on which the runs in progress rest to the remembered ones.
func RememberedRuns(kept map[string]bool, decisions []pando.Decision, b *pando.RunBook) {
	if b.Active() == 0 {
		return
	}
	for _, d := range decisions {
		number, of := d.Inputs[Run]
		if at := b.Find(int(number)); of && at >= 0 && b.Runs[at].Active() {
			kept[d.ID] = true
		}
	}
}

// onceGrace is how long the caller of a run of its own service may take to remove that service.
const onceGrace = 10 * time.Second

// OnceOver reports whether the service of one run is of no more use: its run has ended, or never
// began, and its caller has not removed it. at is the time of the next look, or zero. local returns
// a time of the records on the clock of now.
func OnceOver(s pando.Spec, b *pando.RunBook, asked, now time.Time,
	local func(time.Time) time.Time) (over bool, at time.Time) {
	if !s.IsOnce() || b.Active() > 0 {
		return false, at
	}
	at = local(asked).Add(pando.RunAliveMax)
	if newest, ran := b.Newest(); ran {
		at = local(newest.Ended).Add(onceGrace)
	}
	if now.Before(at) {
		return false, at
	}
	return true, time.Time{}
}
