package service

import (
	"bytes"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestARolloutIsShownWithItsNextStep(t *testing.T) {
	web := pando.DefaultService("web")
	trial := &pando.Trial{Began: consoletest.Noon.Add(-time.Minute)}
	paused := &pando.Trial{Began: consoletest.Noon.Add(-time.Minute), Paused: &pando.Pause{
		At: consoletest.Noon.Add(-20 * time.Second), Reason: "lunch\x1b", By: pando.Asker{
			Kind: pando.AskerOperator, Name: "anna"}}}
	for _, c := range []struct {
		st   pando.RolloutStatus
		want string
	}{
		{pando.RolloutStatus{Service: web, To: 1},
			"service web\nrollout revision 1 is the first and has not served yet"},
		{pando.RolloutStatus{Service: web, From: 2, To: 2, Outcome: &pando.RolloutOutcome{
			Revision: 3, State: pando.RevisionFailed, Reason: "it exited with 1"}},
			"service web\nrollout none: revision 2 serves\n" +
				"newest end revision 3 is failed: it exited with 1"},
		{pando.RolloutStatus{Service: web, From: 1, To: 2, Rolling: true, Wanted: 3, Old: 3, New: 1,
			Trial: trial, Next: "drain web-1: enough"},
			"service web\nrollout from revision 1 to 2\n" +
				"instances 3 old, 1 new, 0 of them healthy; 3 wanted\nfor 1m\nnext drain web-1: enough"},
		{pando.RolloutStatus{Service: web, From: 1, To: 2, Rolling: true, Wanted: 3, Old: 3,
			Trial: paused},
			"service web\nrollout from revision 1 to 2, paused\n" +
				"instances 3 old, 0 new, 0 of them healthy; 3 wanted\nfor 40s\n" +
				"paused for 20s, by operator anna: lunch\uFFFD"},
	} {
		var b bytes.Buffer
		rollout(&b, c.st, consoletest.Noon)
		if got := consoletest.Squeeze(b.String()); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}
