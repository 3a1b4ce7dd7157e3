package decidetest

import (
	"testing"

	"pando.run/pando"
	"pando.run/pando/scale"
)

// A table applies what a decision writes, in the store's order, and nothing else.
func TestATableAppliesWhatADecisionWrites(t *testing.T) {
	tb := Serving(t)
	if n := tb.Count(pando.PhaseInRotation); n != 2 {
		t.Fatalf("%d in rotation, want the 2 of the spec", n)
	}
	before := tb.Rev
	tb.Settle()
	if tb.Rev != before {
		t.Errorf("a service at rest was written %d times", tb.Rev-before)
	}
	tb.Ask(pando.VerbReplicate, tb.W.Of(Web)[0].ID)
	tb.Settle()
	if c := scale.CountOf(tb.W.Of(Web)); c.Capacity != 3 || c.InRotation != 2 || tb.Rev == before {
		t.Errorf("after an ask: %+v at revision %d", c, tb.Rev)
	}
}
