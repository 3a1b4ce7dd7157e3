package website

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/demo/load"
	"pando.run/pando/demo/report"
)

// held returns the names of the checks that hold and of those that do not.
func held(checks []report.Check) (yes, no []string) {
	for _, c := range checks {
		if c.Held {
			yes = append(yes, c.Name)
		} else {
			no = append(no, c.Name)
		}
	}
	return yes, no
}

func TestEveryRequestIsAccountedFor(t *testing.T) {
	var all totals
	all.add(load.Report{AtMillis: 100, Offered: 10, Answered: 9,
		LatencyMicros: []int64{1000, 2000, 3000}})
	all.add(load.Report{AtMillis: 200, Offered: 10, Answered: 11,
		LatencyMicros: []int64{1000, 4000, 5000}})
	all.add(load.Report{AtMillis: 205, Final: true, LatencyMicros: []int64{1000, 3000, 5000}})
	if yes, no := held(all.checks("", nil)); len(no) > 0 || len(yes) != 3 {
		t.Errorf("held %v, missed %v", yes, no)
	}
	if offered, answered := all.rate(1); offered != 100 || answered != 110 {
		t.Errorf("the second interval has %v offered and %v answered per second", offered, answered)
	}
	if len(all.reports) != 2 || !all.last.Final {
		t.Errorf("%d intervals; the shorter last one does not count as an interval", len(all.reports))
	}
}

func TestALostRequestFailsTheDemo(t *testing.T) {
	for _, c := range []struct {
		name   string
		report load.Report
		missed int
	}{
		{"nothing was answered", load.Report{}, 1},
		{"one was neither answered nor failed", load.Report{Offered: 5, Answered: 4}, 1},
		{"one failed", load.Report{Offered: 5, Answered: 4, Failed: map[string]int{"timeout": 1}}, 1},
		{"a connection broke", load.Report{Offered: 5, Answered: 5, Broken: 1}, 1},
	} {
		var all totals
		all.add(c.report)
		if _, no := held(all.checks("", nil)); len(no) != c.missed {
			t.Errorf("%s: missed %v", c.name, no)
		}
	}
}

func TestChartsLeaveOutTheLatencyOfAnEmptyInterval(t *testing.T) {
	var all totals
	all.add(load.Report{AtMillis: 100, Offered: 1, LatencyMicros: []int64{0, 0, 0}})
	all.add(load.Report{AtMillis: 200, Offered: 1, Answered: 2,
		LatencyMicros: []int64{1500, 2500, 2500}})
	rates, latency := all.charts()
	if n := len(rates.Lines[0].Points); n != 2 {
		t.Errorf("%d points of the offered load", n)
	}
	if p := latency.Lines[0].Points; len(p) != 1 || p[0].Value != 1.5 ||
		math.Abs(p[0].Seconds-0.2) > 1e-9 {
		t.Errorf("latency points %v", p)
	}
}

// accessLog writes a log in the chunks of a clone and returns its folder.
func accessLog(t *testing.T, chunks map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range chunks {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTheAuditCountsLinesAcrossChunks(t *testing.T) {
	dir := accessLog(t, map[string]string{
		"00/0": "web-a1-1 GET /\nweb-a1-2 GE", // a line may cross the border of two chunks
		"00/1": "T /\nweb-b2-1 GET /\n",
		"01/0": "web-b2-2 GET /\n",
	})
	a := audit{served: map[string]int{}, counter: 4}
	if err := a.read(dir); err != nil {
		t.Fatal(err)
	}
	if a.lines != 4 || a.twice != 0 || a.served["web-a1"] != 2 || a.served["web-b2"] != 2 {
		t.Errorf("%+v", a)
	}
	if _, no := held(a.checks(4, 0)); len(no) > 0 {
		t.Errorf("missed %v", no)
	}
	if got := shares(map[string]int{"web-a1": 2, "web-b2": 5}); got != "b2 5, a1 2" {
		t.Errorf("shares %q", got)
	}
}

func TestTheAuditFindsLinesThatAreLostOrTwice(t *testing.T) {
	dir := accessLog(t, map[string]string{"0": "web-a1-1 x\nweb-a1-1 x\nweb-a1-2 x\n"})
	a := audit{served: map[string]int{}, counter: 3}
	if err := a.read(dir); err != nil {
		t.Fatal(err)
	}
	if _, no := held(a.checks(3, 0)); len(no) != 1 || a.twice != 1 {
		t.Errorf("a line that is there twice: missed %v", no)
	}
	if _, no := held(a.checks(4, 0)); len(no) != 2 {
		t.Errorf("an answer without a line: missed %v", no)
	}
	if err := a.read(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log that does not exist: %v", err)
	}
}

// A life has its spans in order and within the run, also of an instance that never served or never
// left.
func TestLivesAreWithinTheRun(t *testing.T) {
	began := time.Unix(1000, 0)
	at := func(seconds float64) time.Time {
		return began.Add(time.Duration(seconds * float64(time.Second)))
	}
	line := &timeline{begin: began, because: map[string]pando.Because{}}
	intent := func(id, instance string, verb pando.Verb, steps ...pando.Transition) {
		i := pando.Intent{ID: pando.IntentID(id), Instance: pando.InstanceID(instance), Verb: verb,
			History: steps}
		i.State = steps[len(steps)-1].State
		i.By = pando.Asker{Kind: pando.AskerInstance, Name: "web-a"}
		line.because[id] = pando.Because{Intent: &i}
	}
	intent("1", "web-b", pando.VerbReplicate,
		pando.Transition{State: pando.IntentAsked, At: at(1)},
		pando.Transition{State: pando.IntentInRotation, At: at(1.5)})
	intent("2", "web-b", pando.VerbHalt,
		pando.Transition{State: pando.IntentAsked, At: at(4)},
		pando.Transition{State: pando.IntentDraining, At: at(4)},
		pando.Transition{State: pando.IntentDead, At: at(5)})
	intent("3", "web-c", pando.VerbReplicate,
		pando.Transition{State: pando.IntentAsked, At: at(9)},
		pando.Transition{State: pando.IntentPlaced, At: at(9.1)})
	lives := line.lives(10 * time.Second)
	if len(lives) != 2 || lives[0].Name != "b" || lives[1].Name != "c" {
		t.Fatalf("lives %+v", lives)
	}
	if got, want := fmt.Sprint(lives[0].Spans),
		"[{starting 1 1.5} {serving 1.5 4} {leaving 4 5}]"; got != want {
		t.Errorf("web-b: %s, want %s", got, want)
	}
	for _, life := range lives {
		last := 0.0
		for _, s := range life.Spans {
			if s.From < last || s.To < s.From || s.To > 10 {
				t.Errorf("%s: span %+v is out of order", life.Name, s)
			}
			last = s.To
		}
	}
	if c := line.copies(); len(c) != 1 || c[0] != 500*time.Millisecond {
		t.Errorf("copies took %v: one of them never served", c)
	}
}

func TestTheLoadGeneratorRefusesWrongArguments(t *testing.T) {
	for _, args := range [][]string{
		{"--schedule", "10,1s:20"},
		{"--address", "127.0.0.1:1", "--schedule", "ten"},
		{"--address", "127.0.0.1:1", "--schedule", "10,1s:20", "--connections", "0"},
		{"--address", "127.0.0.1:1", "--schedule", "10,1s:20", "--every", "0s"},
	} {
		if err := Offer(t.Context(), args); err == nil {
			t.Errorf("%s: no error", strings.Join(args, " "))
		}
	}
	if err := Offer(t.Context(), []string{"-h"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}

// A request that failed on a killed host may have left its line, or not. An answered one has it.
func TestTheAuditExcusesTheLinesOfFailedRequests(t *testing.T) {
	for _, c := range []struct {
		answered, failed, lines, missed int
	}{
		{100, 3, 100, 0}, {100, 3, 103, 0}, {100, 3, 99, 1}, {100, 3, 104, 1}, {100, 0, 101, 1},
	} {
		a := audit{lines: c.lines, counter: c.lines}
		if _, no := held(a.checks(c.answered, c.failed)); len(no) != c.missed {
			t.Errorf("%+v: missed %v", c, no)
		}
	}
}

func TestOnlyConnectionsToTheKilledHostMayFail(t *testing.T) {
	dead := map[string]bool{"web-a": true, "web-b": true}
	for name, c := range map[string]struct {
		failed, unanswered, broken map[string]int
		missed                     int
	}{
		"none": {nil, nil, nil, 0},
		"on the dead": {map[string]int{"timeout": 3}, map[string]int{"web-a": 2, "web-b": 1},
			nil, 0},
		"on a new connection":  {map[string]int{"timeout": 2}, map[string]int{"web-a": 1, "": 1}, nil, 0},
		"on many new ones":     {map[string]int{"timeout": 17}, map[string]int{"": 17}, nil, 1},
		"on a living instance": {map[string]int{"timeout": 1}, map[string]int{"web-c": 1}, nil, 1},
		"of another kind": {map[string]int{"timeout": 1, "status 503": 1}, map[string]int{"web-a": 1},
			nil, 1},
		"with a refused one on the dead": {map[string]int{"timeout": 1, "broken": 1},
			map[string]int{"web-a": 1}, map[string]int{"web-b": 1}, 0},
		"with a broken one on a living instance": {map[string]int{"broken": 1}, nil,
			map[string]int{"web-c": 1}, 2},
		"with a broken new one": {map[string]int{"broken": 1}, nil, map[string]int{"": 1}, 2},
	} {
		n := 0
		for _, k := range c.failed {
			n += k
		}
		var all totals
		all.add(load.Report{Offered: 50 + n, Answered: 50, Failed: c.failed, Unanswered: c.unanswered,
			Broken: len(c.broken), BrokenAt: c.broken})
		if _, no := held(all.checks("demo3", dead)); len(no) != c.missed {
			t.Errorf("%s: missed %v", name, no)
		}
	}
}

// An instance of the killed host lives until the kill, and its host is in its name.
func TestAKilledHostEndsItsInstances(t *testing.T) {
	line := newTimeline()
	line.begin = time.Now().Add(-8 * time.Second)
	line.count(pando.ServiceStatus{Instances: []pando.InstanceStatus{
		{Instance: pando.Instance{ID: "web-a", Host: "demo1", Phase: pando.PhaseInRotation}},
		{Instance: pando.Instance{ID: "web-b", Host: "demo3", Phase: pando.PhaseInRotation}},
		{Instance: pando.Instance{ID: "web-c", Phase: pando.PhasePlaced}},
	}})
	if n := line.crowds[0].serving; n != 2 || line.victims() != nil {
		t.Errorf("%d serve before the kill, and the dead are %v", n, line.victims())
	}
	line.killed("demo3")
	line.count(line.now)
	if n := line.crowds[1].serving; n != 1 {
		t.Errorf("%d serve after the kill", n)
	}
	if dead := line.victims(); len(dead) != 1 || !dead["web-b"] {
		t.Errorf("the dead are %v", dead)
	}
	for n, id := range []string{"web-a", "web-b"} {
		i := pando.Intent{ID: pando.IntentID(id), Instance: pando.InstanceID(id),
			Verb: pando.VerbReplicate, State: pando.IntentInRotation,
			History: []pando.Transition{
				{State: pando.IntentAsked, At: line.begin.Add(time.Duration(n) * time.Second)},
				{State: pando.IntentInRotation, At: line.begin.Add(2 * time.Second)}}}
		line.because[id] = pando.Because{Intent: &i}
	}
	lives := line.lives(20 * time.Second)
	if len(lives) != 2 || lives[0].Name != "a demo1" || lives[1].Name != "b demo3" {
		t.Fatalf("lives %+v", lives)
	}
	if end := lives[0].Spans[2].To; end != 20 {
		t.Errorf("the survivor ends at %g s", end)
	}
	if end := lives[1].Spans[2].To; end < 7.9 || end > 12 {
		t.Errorf("the dead one ends at %g s", end)
	}
}
