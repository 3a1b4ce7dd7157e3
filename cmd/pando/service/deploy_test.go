package service

import (
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// A wait ends with the result of its own revision. Failures of other revisions do not count.
func TestWaitJudgesTheRevisionThatWasDeployed(t *testing.T) {
	failed := func(revision float64) *pando.Decision {
		return &pando.Decision{Kind: pando.DecidedFailed, Instance: "web-a", Reason: "it exited with 3",
			Inputs: map[string]float64{"revision": revision}}
	}
	back := &pando.Decision{Kind: pando.DecidedRollback, Reason: "back to revision 1",
		Inputs: map[string]float64{"from": 2, "to": 1}}
	// From an older pando, which did not store the revision.
	old := &pando.Decision{Kind: pando.DecidedFailed, Reason: "it exited with 4"}
	for name, c := range map[string]struct {
		current, target int
		phase           pando.ServicePhase
		problem         *pando.Decision
		done            bool
		says            string
	}{
		"it serves":                   {2, 2, pando.ServiceServing, nil, true, ""},
		"the former one still serves": {1, 2, pando.ServiceServing, nil, false, ""},
		"it has too few":              {2, 2, pando.ServiceDegraded, nil, false, ""},
		"the first one failed":        {0, 2, pando.ServiceDeploying, failed(1), false, ""},
		"it failed": {0, 2, pando.ServiceDeploying, failed(2), false,
			"revision 2 of web: not ready: instance web-a: it exited with 3"},
		"something failed": {0, 2, pando.ServiceDeploying, old, false,
			"it exited with 4"},
		"it failed, and may be tried again": {1, 2, pando.ServiceRolling, failed(2), false, ""},
		"it was rolled back": {1, 1, pando.ServiceServing, back, false,
			"revision 2 of web: not ready: back to revision 1"},
		"another replaced it": {1, 3, pando.ServiceRolling, nil, false, "replaced by revision 3"},
	} {
		st := pando.ServiceStatus{Problem: c.problem}
		st.ServiceKey, st.Current, st.Target, st.Latest, st.Phase = pando.DefaultService("web"),
			c.current, c.target, max(2, c.target), c.phase
		done, err := serving(2)(st)
		if done != c.done || (err == nil) != (c.says == "") ||
			err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, %v, want %v, %q", name, done, err, c.done, c.says)
		}
	}
	st := pando.ServiceStatus{Problem: back}
	st.Current, st.Target, st.Latest, st.Phase = 1, 1, 2, pando.ServiceServing
	if done, err := serving(1)(st); !done || err != nil {
		t.Errorf("the spec before a rollback, deployed again: %v, %v", done, err)
	}
}

func TestFailuresOfAFileNameEachService(t *testing.T) {
	good, bad := deployed{}, deployed{err: pando.ErrNotReady}
	good.ServiceKey, bad.ServiceKey = pando.DefaultService("good"), pando.DefaultService("bad")
	if err := failures([]deployed{good, good}); err != nil {
		t.Errorf("nothing failed, and it returns %v", err)
	}
	err := failures([]deployed{good, bad, good})
	if !errors.Is(err, pando.ErrNotReady) ||
		!strings.Contains(err.Error(), "1 of 3 services failed (bad)") || cli.CodeOf(err) != 7 {
		t.Errorf("got %v, exit code %d", err, cli.CodeOf(err))
	}
}
