package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

var noon = time.Date(2026, 1, 2, 12, 0, 30, 0, time.UTC)

// job returns the case of a job with one run in progress.
func job(change func(*RunCase)) RunCase {
	spec := pando.Spec{Name: "tidy", Kind: pando.KindJob,
		Job: pando.Job{Parallel: 2, Retries: 1, DeadlineSeconds: 60}}.WithDefaults()
	c := RunCase{
		Spec: spec, Revision: 3, Now: noon, Here: func(pando.HostName) bool { return true },
		Leaving: func(pando.HostName) bool { return false },
		After:   func(t time.Time) time.Time { return t.Truncate(time.Minute).Add(time.Minute) },
	}
	var none *pando.RunBook
	c.Book = none.With(NewRun(spec, 3, noon))
	if change != nil {
		change(&c)
	}
	return c
}

func part(id pando.InstanceID, number int, phase pando.Phase) pando.Instance {
	return pando.Instance{ID: id, Host: "h1", Phase: phase, Run: &pando.RunPart{Number: number}}
}

// inShort returns the moves in short.
func inShort(p RunPlan) string {
	var out []string
	for _, m := range p.Moves {
		switch {
		case m.Start > 0:
			out = append(out, fmt.Sprintf("start %d", m.Start))
		case m.Drain != "":
			out = append(out, "drain "+string(m.Drain))
		case m.Forget != "":
			out = append(out, "forget "+string(m.Forget))
		}
	}
	return strings.Join(out, ", ")
}

func TestARunIsFilledAndEnds(t *testing.T) {
	ends := func(clean, failed int) map[int]RunEnds {
		return map[int]RunEnds{1: {Clean: clean, Failed: failed, Last: noon, Why: "it exited with 3"}}
	}
	for name, c := range map[string]struct {
		change func(*RunCase)
		moves  string
		state  pando.RunState
		reason string
	}{
		"it begins": {nil, "start 1, start 1", pando.RunRunning, ""},
		"one runs": {func(c *RunCase) {
			c.Instances = []pando.Instance{part("a", 1, pando.PhaseStarting)}
		}, "start 1", pando.RunRunning, ""},
		"one has ended": {func(c *RunCase) {
			c.Ends, c.Instances = ends(1, 0), []pando.Instance{part("a", 1, pando.PhaseFailed)}
		}, "start 1", pando.RunRunning, ""},
		"all have ended": {func(c *RunCase) { c.Ends = ends(2, 1) }, "", pando.RunSucceeded,
			"2 of 2 ended with 0"},
		"one failed, and waits": {func(c *RunCase) { c.Ends = ends(0, 1) }, "", pando.RunRunning, ""},
		"one failed, and is tried again": {func(c *RunCase) {
			c.Ends, c.Now = ends(1, 1), noon.Add(time.Second)
		}, "start 1", pando.RunRunning, ""},
		"too many failed": {func(c *RunCase) {
			c.Ends, c.Instances = ends(1, 2), []pando.Instance{part("b", 1, pando.PhaseStarting)}
		}, "drain b", pando.RunFailed, "2 failed, and 1 may be tried again: it exited with 3"},
		"the deadline is over": {func(c *RunCase) {
			c.Now, c.Instances = noon.Add(time.Minute), []pando.Instance{part("b", 1, pando.PhasePlaced)}
		}, "drain b", pando.RunFailed, "its deadline of 1m is over"},
		"a host is gone": {func(c *RunCase) {
			c.Here = func(pando.HostName) bool { return false }
			c.Instances = []pando.Instance{part("a", 1, pando.PhaseStarting)}
		}, "forget a, start 1, start 1", pando.RunRunning, ""},
		"a host leaves": {func(c *RunCase) {
			c.Leaving = func(pando.HostName) bool { return true }
			c.Instances = []pando.Instance{part("a", 1, pando.PhaseStarting)}
		}, "drain a, start 1, start 1", pando.RunRunning, ""},
		"its service goes": {func(c *RunCase) {
			c.Removing, c.Instances = true, []pando.Instance{part("a", 1, pando.PhaseStarting)}
		}, "drain a", pando.RunEnded, "being removed"},
		"its caller is silent": {func(c *RunCase) {
			c.Book.Runs[0].Attached, c.Book.Runs[0].Alive = true, noon.Add(-pando.RunAliveMax)
		}, "", pando.RunEnded, "its caller has been silent"},
		"the book forgot it": {func(c *RunCase) {
			c.Book.Runs = nil
			c.Instances = []pando.Instance{part("a", 1, pando.PhaseStarting)}
		}, "drain a", "", ""},
	} {
		given := job(c.change)
		was := given.Book.Clone()
		p := Runs(given)
		newest, _ := p.Book.Newest()
		if inShort(p) != c.moves || newest.State != c.state ||
			!strings.Contains(newest.Reason, c.reason) {
			t.Errorf("%s: %q, %s %q; want %q, %s %q", name, inShort(p), newest.State, newest.Reason, c.moves,
				c.state, c.reason)
		}
		if fmt.Sprint(was) != fmt.Sprint(given.Book) {
			t.Errorf("%s: the book of the caller changed", name)
		}
	}
}

// A run that is due starts. The overlap rule decides beside an older one, and each time without a
// run is counted.
func TestAScheduleStartsRuns(t *testing.T) {
	scheduled := func(o pando.Overlap, active int, late time.Duration) RunCase {
		return job(func(c *RunCase) {
			c.Spec.Job.Schedule, c.Spec.Job.Zone, c.Spec.Job.Overlap = "* * * * *", "UTC", o
			c.Spec.Job.DeadlineSeconds = 0
			c.Book = &pando.RunBook{Schedule: "* * * * *", Zone: "UTC", Next: noon.Truncate(time.Minute)}
			for range active {
				c.Book = c.Book.With(NewRun(c.Spec, 3, noon))
			}
			c.Now = noon.Add(late)
		})
	}
	for name, c := range map[string]struct {
		given          RunCase
		active, missed int
		next           time.Duration // after noon's minute
	}{
		"in time":        {scheduled(pando.OverlapForbid, 0, 0), 1, 0, time.Minute},
		"beside, forbid": {scheduled(pando.OverlapForbid, 1, 0), 1, 1, time.Minute},
		"beside, allow":  {scheduled(pando.OverlapAllow, 1, 0), 2, 0, time.Minute},
		"beside, full": {scheduled(pando.OverlapAllow, pando.RunsMax, 0), pando.RunsMax, 1,
			time.Minute},
		"beside, replace": {scheduled(pando.OverlapReplace, 1, 0), 1, 0, time.Minute},
		"an hour late":    {scheduled(pando.OverlapForbid, 0, time.Hour), 1, 60, 61 * time.Minute},
		"years late": {func() RunCase {
			c := scheduled(pando.OverlapForbid, 0, 2*365*24*time.Hour)
			return c
		}(), 0, missesMax, 2*365*24*time.Hour + time.Minute},
	} {
		p := Runs(c.given)
		next := noon.Truncate(time.Minute).Add(c.next)
		if p.Book.Active() != c.active || p.Book.Missed != c.missed || !p.Book.Next.Equal(next) {
			t.Errorf("%s: %d active, %d missed, next %s; want %d, %d, %s", name, p.Book.Active(),
				p.Book.Missed, p.Book.Next, c.active, c.missed, next)
		}
		if p.Wake.IsZero() || p.Wake.After(next) {
			t.Errorf("%s: it wakes at %s", name, p.Wake)
		}
	}
	c := scheduled(pando.OverlapForbid, 0, 0)
	c.Book = nil // a new job waits for its first time
	if p := Runs(c); p.Book.Active() != 0 || !p.Book.Next.After(noon) {
		t.Errorf("%+v", p.Book)
	}
	c = scheduled(pando.OverlapForbid, 0, 0)
	c.Book.Schedule = "0 0 * * *" // another spec: the old time means nothing
	if p := Runs(c); p.Book.Active() != 0 || p.Book.Missed != 0 {
		t.Errorf("%+v", p.Book)
	}
}

func TestTheEndsOfRunsAreCounted(t *testing.T) {
	failed := func(number, code float64) pando.Decision {
		return pando.Decision{ID: fmt.Sprint(number, code), Kind: pando.DecidedFailed, At: noon,
			Reason: "it exited", Inputs: map[string]float64{Run: number, ExitCode: code}}
	}
	all := []pando.Decision{failed(1, 0), failed(2, 0), failed(2, 1), {Kind: pando.DecidedDeploy},
		failed(2, 3), {Kind: pando.DecidedFailed, Inputs: map[string]float64{ExitCode: 0}}}
	got := RunEndsOf(all)
	if len(got) != 2 || got[1].Clean != 1 || got[2].Clean != 1 || got[2].Failed != 2 {
		t.Errorf("%+v", got)
	}
	kept := map[string]bool{}
	book := &pando.RunBook{Runs: []pando.Run{{Number: 1, State: pando.RunSucceeded},
		{Number: 2, State: pando.RunRunning}}}
	if RememberedRuns(kept, all, book); len(kept) != 3 {
		t.Errorf("kept %v, want the ends of run 2", kept)
	}
}

func TestAJobHasAPhase(t *testing.T) {
	nightly := pando.Job{Schedule: "0 2 * * *"}
	book := func(next bool, states ...pando.RunState) *pando.RunBook {
		b := &pando.RunBook{}
		for n, s := range states {
			b.Runs = append(b.Runs, pando.Run{Number: n + 1, State: s, Want: 1})
		}
		if next {
			b.Next = noon
		}
		return b
	}
	for _, c := range []struct {
		book *pando.RunBook
		job  pando.Job
		want pando.ServicePhase
	}{
		{nil, pando.Job{}, pando.ServiceScheduled},
		{book(true), nightly, pando.ServiceScheduled},
		{book(false, pando.RunRunning, pando.RunFailed), pando.Job{}, pando.ServiceRunning},
		{book(false, pando.RunSucceeded), pando.Job{}, pando.ServiceCompleted},
		{book(true, pando.RunSucceeded), nightly, pando.ServiceScheduled},
		{book(true, pando.RunFailed), nightly, pando.ServiceFailed},
	} {
		if got, reason := JudgeJob(c.book, c.job); got != c.want || reason == "" {
			t.Errorf("%+v: %s (%s), want %s", c.book, got, reason, c.want)
		}
	}
}

// The service of one run goes once the run is over, or if none begins. Its caller is given time.
func TestTheServiceOfOneRunGoesWithoutItsCaller(t *testing.T) {
	once, err := pando.Spec{Name: "web", Command: []string{"x"}}.Once("web-run-1")
	if err != nil {
		t.Fatal(err)
	}
	book := func(change func(*pando.Run)) *pando.RunBook {
		var none *pando.RunBook
		b := none.With(pando.Run{Began: noon})
		change(&b.Runs[0])
		return b
	}
	active := book(func(*pando.Run) {})
	ended := book(func(r *pando.Run) { *r = r.End(pando.RunEnded, noon, "gone") })
	for name, c := range map[string]struct {
		spec  pando.Spec
		book  *pando.RunBook
		after time.Duration
		over  bool
	}{
		"its run is in progress":       {once, active, time.Hour, false},
		"its run has just ended":       {once, ended, onceGrace - 1, false},
		"its run has ended":            {once, ended, onceGrace, true},
		"its run may begin":            {once, nil, pando.RunAliveMax - 1, false},
		"its run never began":          {once, nil, pando.RunAliveMax, true},
		"a job of its operator stays":  {pando.Spec{Kind: pando.KindJob}, ended, time.Hour, false},
		"a service with runs stays":    {pando.Spec{}, ended, time.Hour, false},
		"a label makes no job of this": {pando.Spec{Labels: once.Labels}, ended, time.Hour, false},
	} {
		over, at := OnceOver(c.spec, c.book, noon, noon.Add(c.after),
			func(t time.Time) time.Time { return t })
		waits := c.spec.IsOnce() && c.book.Active() == 0 && !c.over
		if over != c.over || waits == at.IsZero() {
			t.Errorf("%s: %v, next look at %v", name, over, at)
		}
	}
}
