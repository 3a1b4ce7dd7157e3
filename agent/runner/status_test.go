package runner

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pando.run/pando"
)

func TestAnInboxKeepsTheOrderOfEachSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inbox{filled: make(chan struct{}, 1)}
		for sender := range 4 {
			go func() {
				for n := range 100 {
					b.put(called{by: 1000*sender + n})
				}
			}()
		}
		var last [4]int
		received := 0
		for received < 400 {
			<-b.filled
			for _, m := range b.take() {
				by := m.(called).by
				if sender, n := by/1000, by%1000; n < last[sender] {
					t.Fatalf("message %d of sender %d came after %d", n, sender, last[sender])
				} else {
					last[sender] = n
				}
				received++
			}
		}
	})
}

// Control writes two steps. Every other record of an instance is an echo of its agent.
func TestARunnerTakesTwoStepsOfControl(t *testing.T) {
	all := []pando.Phase{
		pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm, pando.PhaseReady,
		pando.PhaseInRotation, pando.PhaseDraining, pando.PhaseDrained, pando.PhaseFailed,
		pando.PhaseMerged,
	}
	drains := all[:5] // the phases before draining
	for _, mine := range all {
		for _, theirs := range all {
			for _, warm := range []bool{false, true} {
				want := theirs == pando.PhaseDraining && slices.Contains(drains, mine) ||
					theirs == pando.PhasePlaced && mine == pando.PhaseWarm && !warm
				record := pando.Instance{Phase: theirs, Warm: warm}
				now, fresh := AfterControl(pando.Instance{Phase: mine, Warm: true}, record)
				if fresh != want || fresh && now.Phase != theirs || !fresh && now.Phase != mine {
					t.Errorf("%s, and the record is %s (warm %v): %s, fresh %v", mine, theirs, warm,
						now.Phase, fresh)
				}
			}
		}
	}
}

func TestOnlyAServingInstanceHasAWeight(t *testing.T) {
	for _, c := range []struct {
		phase        pando.Phase
		warm, runs   bool
		weight, soon int
		none         bool
	}{
		{phase: pando.PhaseReady, runs: true, weight: 70},
		{phase: pando.PhaseInRotation, runs: true, weight: 70},
		{phase: pando.PhaseDraining, runs: true},
		{phase: pando.PhaseDrained, runs: true},
		{phase: pando.PhaseWarm, warm: true, runs: true, soon: 70},
		{phase: pando.PhasePlaced, runs: true, soon: 70},
		{phase: pando.PhaseStarting, runs: true, soon: 70},
		{phase: pando.PhaseStarting, warm: true, runs: true},
		{phase: pando.PhaseInRotation, none: true},
		{phase: pando.PhaseFailed, runs: true, none: true},
	} {
		s := Status{Instance: pando.Instance{ID: "i", Phase: c.phase, Warm: c.warm, Weight: 70}, Runs: c.runs}
		e, ok := s.Endpoint()
		if ok == c.none || e.Weight != c.weight || e.Soon != c.soon {
			t.Errorf("%+v has the endpoint %+v (%v)", c, e, ok)
		}
	}
}

func TestAPositionIsTheLastWord(t *testing.T) {
	for output, want := range map[string]string{
		"a:7":                             "a:7",
		"starting\nrecovered\na:7\n\n":    "a:7",
		"WSREP: Recovered position: a:12": "a:12",
		"a:7\nbye":                        "",
		"":                                "",
		" \n":                             "",
	} {
		p, err := positionIn(strings.Split(output, "\n"))
		if want == "" && err == nil || want != "" && (err != nil || p.String() != want) {
			t.Errorf("%q has the position %v (%v), want %q", output, p, err, want)
		}
	}
}

func TestSecretsStayOutOfEvidence(t *testing.T) {
	failed := &pando.CheckFailed{Command: []string{"check"}, Code: 1,
		Output: []byte("hush\n\n\x1b[1m")}
	private, open := refusalOf(failed, true), refusalOf(failed, false)
	if len(private.lines) > 0 || strings.Contains(private.reason, "hush") {
		t.Errorf("with secrets: %+v", private)
	}
	if len(open.lines) != 2 || open.lines[0] != "hush" || strings.Contains(open.lines[1], "\x1b") {
		t.Errorf("without secrets: %q", open.lines)
	}
}
