package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
)

// For any report of the probes, at most a quarter of a service is taken out, and one always stays.
func TestProbesTakeOutAtMostAQuarter(t *testing.T) {
	for total := range 200 {
		out := 0
		for out <= total && MayEnd(out, total-out, total) {
			out++
		}
		if out > max(1, total/4) || total > 0 && out >= total {
			t.Errorf("%d of %d are taken out", out, total)
		}
		if total >= 2 && out != max(1, total/4) {
			t.Errorf("%d of %d are taken out, a quarter may be", out, total)
		}
	}
}

func TestAWaitOfOneLengthIsRecordedOnce(t *testing.T) {
	w := BackOff(failures(1, 5, t0), 1, 1, 0, t0, t0)
	if w.For == 0 || w.Reason(1) == "" || !w.Failing {
		t.Fatalf("no wait after five failures of one: %+v", w)
	}
	noted := []pando.Decision{{Kind: pando.DecidedBackOff, At: t0, Inputs: w.Inputs()}}
	longer := BackOff(failures(1, 6, t0), 1, 1, 0, t0, t0)
	switch {
	case w.Recorded(nil):
		t.Error("a wait is on record before it is recorded")
	case !w.Recorded(append(noted, pando.Decision{Kind: pando.DecidedFailed})):
		t.Error("a wait is recorded twice")
	case w.Recorded(append(noted, pando.Decision{Kind: pando.DecidedDeploy})):
		t.Error("a wait is not recorded again after a deploy")
	case longer.Recorded(noted):
		t.Errorf("a wait of %s counts as one of %s", longer.For, w.For)
	}
}

// A program that fails without end keeps four records, whose number is that of its failures.
func TestEqualFailuresShareARecord(t *testing.T) {
	all := []pando.Decision{{ID: "d", Kind: pando.DecidedDeploy}}
	for n := range 200 {
		for _, d := range []pando.Decision{
			{Reason: fmt.Sprintf("not ready within 0.%ds", n%9+1), Inputs: map[string]float64{Revision: 1}},
			{Reason: "it exited with 3", Inputs: map[string]float64{Revision: 1, ExitCode: 3}},
			{Reason: "it exited with 4", Inputs: map[string]float64{Revision: 1, ExitCode: 4}},
		} {
			d.ID, d.Kind = fmt.Sprint(len(d.Reason), "-", d.Inputs[ExitCode], "-", n), pando.DecidedFailed
			all = append(all, d)
		}
		put, gone := Folded(all, pando.RestartAlways, 40)
		for _, p := range put {
			all[slices.IndexFunc(all, func(d pando.Decision) bool { return d.ID == p.ID })] = p
		}
		all = slices.DeleteFunc(all, func(d pando.Decision) bool { return slices.Contains(gone, d.Key()) })
	}
	failed := Failures(all, func(pando.InstanceID) int { return 1 }, nil)
	if len(all) != 1+3*(1+failuresShown) || CountFailures(failed) != 600 {
		t.Errorf("%d records stand for %d failures, want 13 for 600", len(all), CountFailures(failed))
	}
	if put, gone := Folded(all, pando.RestartNo, 40); len(put)+len(gone) > 0 {
		t.Errorf("ends that are not replaced are folded: %v", put)
	}
}

func TestTheLastStartIsControlsOwnPlacement(t *testing.T) {
	placed := func(by pando.AskerKind, verb pando.Verb, second int) pando.Intent {
		at := t0.Add(time.Duration(second) * time.Second)
		i := pando.Intent{Verb: verb, By: pando.Asker{Kind: by}}.Become(pando.IntentAsked, at, "")
		return i.Become(pando.IntentGranted, at, "").Become(pando.IntentPlaced, at, "")
	}
	refused := pando.Intent{Verb: pando.VerbReplicate, By: pando.Asker{Kind: pando.AskerControl}}
	all := []pando.Intent{
		placed(pando.AskerControl, pando.VerbReplicate, 1),
		placed(pando.AskerControl, pando.VerbReplicate, 2),
		placed(pando.AskerInstance, pando.VerbReplicate, 3),
		placed(pando.AskerControl, pando.VerbHalt, 4), refused,
	}
	if at := LastStart(all, (*pando.Intent).Changed); !at.Equal(t0.Add(2 * time.Second)) {
		t.Errorf("the last start was at %s", at)
	}
	if at := LastStart(all[2:], (*pando.Intent).Changed); !at.IsZero() {
		t.Errorf("without a start of control's own: %s", at)
	}
}

func TestTheLastWordsAreOfTheNewestFailureOfTheRevision(t *testing.T) {
	failed := func(i pando.InstanceID, line string) pando.Decision {
		return pando.Decision{Kind: pando.DecidedFailed, Instance: i, Lines: []string{line}}
	}
	decisions := []pando.Decision{
		failed("b", "before the deploy"), {Kind: pando.DecidedDeploy},
		failed("b", "first"), failed("b", "second"), {Kind: pando.DecidedPin},
		failed("a", "of the old one"),
	}
	intents := []pando.Intent{{Instance: "b", Inputs: map[string]float64{Revision: 2}}}
	revisions := Revisions(intents, []pando.Instance{{ID: "a", Revision: 1}})
	all := Failures(decisions, func(i pando.InstanceID) int { return revisions[i] }, nil)
	for revision, want := range map[int]string{1: "of the old one", 2: "second", 3: ""} {
		got := ""
		for _, line := range LastWords(decisions, all, revision) {
			got += line
		}
		if got != want {
			t.Errorf("the last words of revision %d are %q, want %q", revision, got, want)
		}
	}
}
