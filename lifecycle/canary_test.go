package lifecycle

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// A gate fails only when the new revision is worse without a break for GateSpan.
func TestAGateComparesTheRevisions(t *testing.T) {
	ratio := pando.Gate{Metric: "errors", WorseThan: 2, Above: 0.01}
	none, low, high := [3]float64{-1, -1, -1}, [3]float64{0.01, 0.01, 0.01}, [3]float64{0.5, 0.5, 0.5}
	for name, c := range map[string]struct {
		gate     pando.Gate
		old, new [3]float64 // readings, half a span apart; below 0: none
		over     bool
		worse    bool
	}{
		"worse":             {ratio, low, high, true, true},
		"one bad moment":    {ratio, low, [3]float64{0.01, 0.5, 0.01}, false, false},
		"a break":           {ratio, low, [3]float64{0.5, 0.01, 0.5}, true, false},
		"a broken old one":  {ratio, high, high, false, false},
		"below the limit":   {ratio, [3]float64{}, low, false, false},
		"the old ones left": {ratio, [3]float64{0.01, -1, -1}, high, true, true},
		"never an old one":  {ratio, none, high, true, true},
		"nothing to compare": {pando.Gate{Metric: "errors", WorseThan: 2}, none, high, false,
			false},
	} {
		var gate Comparison
		var found *pando.Compared
		for n := range c.new {
			var old []float64
			if c.old[n] >= 0 {
				old = []float64{c.old[n] / 2, c.old[n] * 3 / 2} // their mean counts
			}
			found = gate.Add(c.gate, old, []float64{c.new[n]}, t0.Add(time.Duration(n)*GateSpan/2))
		}
		if found.Over != c.over || found.Worse != c.worse {
			t.Errorf("%s: over %v, worse %v", name, found.Over, found.Worse)
		}
	}
	if found := new(Comparison).Add(ratio, []float64{1}, nil, t0); found != nil {
		t.Errorf("without a number of the new revision the gate found %+v", found)
	}
}

// trial draws a rollout with a canary or a gate, at any stage.
func trial(t *rapid.T) Takeover {
	u := takeover(t)
	u.Rule.Canary = rapid.SampledFrom([]float64{0, 0.1, 0.5}).Draw(t, "canary")
	u.Rule.Gate.Metric = rapid.SampledFrom([]pando.Metric{"", "errors"}).Draw(t, "metric")
	u.Soaked = rapid.Bool().Draw(t, "soaked")
	u.Compared = rapid.SampledFrom([]*pando.Compared{nil, {New: 1}, {New: 1, Over: true},
		{New: 1, Over: true, Worse: true}}).Draw(t, "compared")
	return u
}

// While canaries soak, every instance of the current revision stays, also beside overtaken ones.
// Canaries that soaked pass, unless their gate has found nothing or is exceeded.
func TestCanariesSoakBesideEveryOldInstance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := trial(t)
		u.Rule.Order, u.Rule.SoakSeconds = pando.StartFirst, 1
		for n := range u.Instances {
			u.Instances[n].Revision = rapid.IntRange(1, 3).Draw(t, "any revision")
		}
		of := map[pando.InstanceID]int{}
		for _, i := range u.Instances {
			of[i.ID] = i.Revision
		}
		n := u.canaries(u.Wanted)
		follows := Survey(u, t0)
		for range 60 {
			s := Survey(u, t0)
			m := s.Next()
			if again := follows.Next(); m != again {
				t.Fatalf("a new survey wants %+v, the stage that followed its moves %+v", m, again)
			}
			if n > 0 && m.Drain != "" && of[m.Drain] == u.Current {
				t.Fatalf("%s of the current revision leaves: %s", m.Drain, m.Reason)
			}
			if n > 0 && m.Start && !m.Former && s.fresh >= n {
				t.Fatalf("canary %d of %d starts", s.fresh+1, n)
			}
			gate := u.Rule.Gate.Metric == "" || u.Compared != nil && !u.Compared.Over
			if m.Pass && (n == 0 || s.healthy < n || !gate) {
				t.Fatalf("%d of %d canaries pass, compared %+v", s.healthy, n, u.Compared)
			}
			if !u.carryOut(m, 100+len(u.Instances)) {
				return
			}
			if m.Start {
				follows.Started(m)
			} else {
				follows.Drained()
			}
			last := u.Instances[len(u.Instances)-1]
			of[last.ID] = last.Revision
		}
		t.Fatal("the moves do not end")
	})
}

// The deadline and the gate end a rollout in any state. A paused rollout has no deadline.
func TestAFailedGateEndsARollout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := trial(t)
		u.Rule.DeadlineSeconds = 60
		u.Age = time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds")) * time.Second
		late := u.Age >= time.Minute && !u.Paused
		worse := u.Rule.Gate.Metric != "" && u.Compared != nil && u.Compared.Worse
		m := next(u, t0)
		if m.Abort != (late || worse) {
			t.Fatalf("late %v, worse %v: %+v", late, worse, m)
		}
		if late && !worse && !strings.Contains(m.Reason, "deadline of 1m") {
			t.Fatalf("the reason is %q", m.Reason)
		}
	})
}
