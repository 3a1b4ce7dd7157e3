package decide_test

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

// A shift moves what it names to the host that it names, and nothing else, without a gap.
func TestAShiftMovesInstancesStartFirst(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pando.Spec)
		one    bool
		want   int // on h3
	}{
		"the home": {want: 2},
		"one of a spread": {change: func(s *pando.Spec) { s.Place.Spread = pando.SpreadHost }, one: true,
			want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			tb := decidetest.Shifting(t, c.change)
			s := pando.Shift{From: "h1", To: "h3"}
			if c.one {
				s.Instances = []pando.InstanceID{tb.W.Of(web)[0].ID}
			}
			tb.Shift(s)
			least := 2
			for range 10 {
				tb.Settle()
				least = min(least, tb.Count(pando.PhaseInRotation))
				tb.Trickle()
				tb.Now = tb.Now.Add(2 * time.Second)
			}
			tb.Settle()
			if n := tb.On("h3", pando.PhaseInRotation); n != c.want || least != 2 || len(tb.W.Of(web)) != 2 {
				t.Errorf("%d on h3, want %d; %d served meanwhile: %+v", n, c.want, least, tb.W.Of(web))
			}
			if s := tb.W.Services[web].V.Shift; s != nil {
				t.Errorf("the shift has not ended: %+v", s)
			}
		})
	}
}

func TestAShiftThatCannotGoOnIsGivenUp(t *testing.T) {
	for want, spoil := range map[string]func(*decidetest.Table){
		"takes no new instances": func(tb *decidetest.Table) { tb.Mark("h3", true) },
		"its state is on h1":     func(tb *decidetest.Table) { tb.Put(pando.StateHead{Service: web, Host: "h1"}) },
		"failures without": func(tb *decidetest.Table) {
			for range 40 {
				tb.Settle()
				for _, i := range tb.W.Of(web) {
					if i.Host == "h3" {
						tb.Fail(i, 1)
					}
				}
				tb.Now = tb.Now.Add(time.Minute)
			}
		},
	} {
		tb := decidetest.Shifting(t, nil)
		tb.Shift(pando.Shift{From: "h1", To: "h3"})
		spoil(tb)
		tb.Settle()
		if tb.W.Services[web].V.Shift != nil || tb.On("h1", pando.PhaseInRotation) != 2 {
			t.Errorf("%s: the shift is %+v with %+v", want, tb.W.Services[web].V.Shift, tb.W.Of(web))
		}
		noted := false
		for _, v := range tb.W.DecisionsOf(web) {
			noted = noted || v.Kind == pando.DecidedMove && strings.Contains(v.Reason, want)
		}
		if !noted {
			t.Errorf("%s is not on record", want)
		}
	}
}
