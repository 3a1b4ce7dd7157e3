package pando

import (
	"testing"
	"time"
)

// A record of an older or foreign build may lack the history of an intent.
func TestAnIntentWithoutAHistoryHasTimesAndAReason(t *testing.T) {
	bare := Intent{ID: "i1", State: IntentAsked, Reason: "load"}
	if !bare.Asked().IsZero() || !bare.Changed().IsZero() || bare.Why() != "load" {
		t.Errorf("asked %s, changed %s, why %q", bare.Asked(), bare.Changed(), bare.Why())
	}
	first, second := time.Unix(10, 0), time.Unix(20, 0)
	i := Intent{ID: "i2"}.Become(IntentAsked, first, "load").Become(IntentGranted, second, "2 of 4")
	if i.Asked() != first || i.Changed() != second || i.Why() != "load" || i.Reason != "2 of 4" {
		t.Errorf("asked %s, changed %s, why %q, reason %q", i.Asked(), i.Changed(), i.Why(), i.Reason)
	}
}
