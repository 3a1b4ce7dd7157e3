package records

import (
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// A step waits for the next one at most as long as its phase allows. The clock that wrote the begin
// of its phase may be ahead of the clock of this host.
func TestAStepIsRecordedSoonOnAnyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ahead := range []time.Duration{-time.Minute, 0, time.Minute} {
			for phase, most := range map[pando.Phase]time.Duration{
				pando.PhasePlaced: 0, pando.PhaseDraining: 0, pando.PhaseReady: 15 * time.Millisecond,
			} {
				c := New(Config{Clock: sim.Clock{}}).NewRecorder("web-1")
				c.Add(pando.Instance{Phase: phase, Since: time.Now().Add(ahead)}, nil)
				if wait := c.wait(); wait > most {
					t.Errorf("%s since %s from now: it waits for %s, want at most %s", phase, ahead, wait, most)
				}
			}
		}
	})
}

// Control claims a reserve that has failed meanwhile: its end stays its end, and the ask that
// claimed it ends with it. Otherwise a later agent would start it again.
func TestAClaimThatCameTooLateRevivesNothing(t *testing.T) {
	ask := pando.Intent{ID: "ask", Service: pando.DefaultService("web"), Verb: pando.VerbReplicate,
		State: pando.IntentPlaced, Instance: "web-1"}
	mine := pando.Instance{ID: "web-1", Service: pando.DefaultService("web"), Host: "a", Warm: true, Intent: "keep"}
	theirs := mine
	theirs.Warm, theirs.Intent, theirs.Role = false, ask.ID, pando.RoleFirst
	theirs.Phase = pando.PhasePlaced
	known := world.Versioned[pando.Instance]{V: theirs, Modified: 7}
	asks := Intents{ask.ID: {V: ask, Modified: 8}}
	for _, c := range []struct {
		phases []pando.Phase
		want   pando.Phase
		state  pando.IntentState
	}{
		{[]pando.Phase{pando.PhaseWarm}, pando.PhasePlaced, ""},
		{[]pando.Phase{pando.PhaseFailed}, pando.PhaseFailed, pando.IntentFailed},
		{[]pando.Phase{pando.PhaseFailed, pando.PhaseMerged}, pando.PhaseMerged, pando.IntentFailed},
	} {
		var steps []step
		for _, p := range c.phases {
			mine.Phase = p
			steps = append(steps, step{Instance: mine})
		}
		txn := written(asks, known, mine, steps)
		got := txn.Put[0].(pando.Instance)
		if got.Phase != c.want || got.Warm || got.Intent != ask.ID || got.Role != theirs.Role {
			t.Errorf("%v: the record is %+v", c.phases, got)
		}
		var state pando.IntentState
		if len(txn.Put) > 1 {
			state = txn.Put[1].(pando.Intent).State
		}
		if state != c.state {
			t.Errorf("%v: the ask is %q, want %q", c.phases, state, c.state)
		}
	}
}
