package scale

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// HAVEN Fig. 6, line 4: Σ ≥ τ, nothing pending, something inactive.
func TestScaleUpIsFigure6(t *testing.T) {
	for _, c := range []struct {
		best, up          float64
		pending, inactive int
		want              bool
	}{
		{0.6, 0.6, 0, 1, true}, {0.7, 0.6, 0, 1, true}, {0.59, 0.6, 0, 1, false},
		{0.7, 0.6, 1, 1, false}, {0.7, 0.6, 0, 0, false},
	} {
		if got := ScaleUp(c.best, c.up, c.pending, c.inactive); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// HAVEN Fig. 7, lines 14 to 18: Σ < τ for more than half.
func TestScaleDownIsFigure7(t *testing.T) {
	for _, c := range []struct {
		scores []float64
		want   bool
	}{
		{[]float64{0.05, 0.05, 0.9}, true}, {[]float64{0.05, 0.9}, false},
		{[]float64{0.1, 0.1}, false}, {nil, false}, {[]float64{0}, true},
	} {
		if got := ScaleDown(c.scores, 0.1); got != c.want {
			t.Errorf("%v: %v", c.scores, got)
		}
	}
}

// track runs a policy at one sample every 200 ms.
type track struct {
	p     Policy
	scale pando.Scale
	in    []pando.Instance
	now   time.Time
	sum   float64 // of the packets
}

func (k *track) run(d time.Duration, sample func(pando.InstanceID) (float64, bool)) (asks []Wish) {
	for end := k.now.Add(d); k.now.Before(end); k.now = k.now.Add(200 * time.Millisecond) {
		s := Sample{At: k.now, Score: map[pando.InstanceID]float64{},
			Gauge: map[pando.InstanceID]float64{}}
		for _, i := range k.in {
			if v, ok := sample(i.ID); ok {
				s.Score[i.ID], s.Gauge[i.ID] = v, v
			}
		}
		if w := k.p.Step(k.scale, k.in, s); w.Verb != "" {
			asks = append(asks, w)
		}
	}
	return asks
}

func all(v float64) func(pando.InstanceID) (float64, bool) {
	return func(pando.InstanceID) (float64, bool) { return v, true }
}

func three() []pando.Instance {
	return instances(pando.PhaseInRotation, pando.PhaseInRotation, pando.PhaseInRotation)
}

func byScores() *track {
	return &track{in: three(), now: t0, scale: pando.Scale{Min: 1, Max: 8, By: pando.ByScores,
		Up: 0.6, Down: 0.1, QuietSeconds: 5}}
}

func TestScoresGrowQuicklyAndShrinkLate(t *testing.T) {
	k := byScores()
	if asks := k.run(10*time.Second, all(0.5)); len(asks) > 0 {
		t.Fatalf("between both thresholds: %v", asks)
	}
	if asks := k.run(200*time.Millisecond, all(0.9)); len(asks) > 0 {
		t.Fatalf("after one odd reading: %v", asks)
	}
	asks := k.run(time.Second, all(0.9))
	if len(asks) == 0 || asks[0].Verb != pando.VerbReplicate || asks[0].Inputs["score"] != 0.9 ||
		!strings.Contains(asks[0].Reason, "0.6 adds an instance") {
		t.Fatalf("above up: %+v", asks)
	}
	// The best score counts: one free instance is enough.
	free := func(i pando.InstanceID) (float64, bool) {
		return map[bool]float64{true: 0.2, false: 3}[i == "web-1"], true
	}
	if asks := k.run(10*time.Second, free); len(asks) > 0 {
		t.Fatalf("one instance is free: %v", asks)
	}
	if asks := k.run(4*time.Second, all(0.01)); len(asks) > 0 {
		t.Fatalf("low for less than quiet: %v", asks)
	}
	asks = k.run(2*time.Second, all(0.01))
	if len(asks) != 1 || asks[0].Verb != pando.VerbHalt || asks[0].Inputs["down"] != 0.1 {
		t.Fatalf("low for longer: %v", asks)
	}
}

// One reading adds the next instance of a service that has just grown. It waits for the measurement
// of the new one, and a refused ask is repeated at the usual pace.
func TestGrowthContinuesAtOnce(t *testing.T) {
	const reading = 200 * time.Millisecond
	k := byScores()
	grow := func() {
		k.in = append(k.in, k.in[0])
		k.in[len(k.in)-1].ID = pando.InstanceID(fmt.Sprintf("web-%d", len(k.in)))
	}
	if asks := k.run(2*reading, all(0.9)); len(asks) != 1 {
		t.Fatalf("two readings above up: %v", asks)
	}
	if asks := k.run(reading, all(0.9)); len(asks) != 0 {
		t.Errorf("the ask was refused: %v", asks)
	}
	k.run(reading, all(0.9)) // asked again, and granted
	grow()
	newest := k.in[3].ID
	others := func(i pando.InstanceID) (float64, bool) { return 0.9, i != newest }
	if asks := k.run(reading, others); len(asks) != 0 {
		t.Errorf("the new instance is not measured: %v", asks)
	}
	if asks := k.run(reading, all(0.9)); len(asks) != 1 || asks[0].Inputs["instances"] != 4 {
		t.Errorf("all are above up again: %v", asks)
	}
	grow()
	k.run(growFor, all(0.5))
	if asks := k.run(reading, all(0.9)); len(asks) != 0 {
		t.Errorf("one odd reading later: %v", asks)
	}
}

func TestTheEldestLeavesAndTheFirstLast(t *testing.T) {
	in := three()
	for n := range in {
		in[n].Born = t0.Add(time.Duration(n) * time.Hour)
	}
	if got := eldest(in); got != "web-0" {
		t.Errorf("%s leaves", got)
	}
	in[0].Role = pando.RoleFirst
	if got := eldest(in); got != "web-1" {
		t.Errorf("%s leaves although web-1 is the eldest but for the first", got)
	}
	in[1].Phase = pando.PhaseDraining
	if got := eldest(in); got != "web-2" {
		t.Errorf("%s leaves although web-1 drains", got)
	}
	if got := eldest(in[:1]); got != "web-0" {
		t.Errorf("%s leaves", got)
	}
}

func TestWhatIsUnknownShrinksNothing(t *testing.T) {
	k := byScores()
	none := func(pando.InstanceID) (float64, bool) { return 0, false }
	if asks := k.run(time.Minute, none); asks != nil {
		t.Fatalf("without a score: %v", asks)
	}
	some := func(i pando.InstanceID) (float64, bool) { return 0, i == "web-0" }
	if asks := k.run(time.Minute, some); len(asks) > 0 {
		t.Fatalf("two of three are unknown: %v", asks)
	}
	k.in[2].Phase = pando.PhaseStarting
	if asks := k.run(time.Minute, all(5)); len(asks) > 0 {
		t.Fatalf("one is on its way: %v", asks)
	}
	k.in[2].Phase = pando.PhaseInRotation
	k.scale.Max = 3
	if asks := k.run(time.Minute, all(5)); len(asks) > 0 {
		t.Fatalf("at max: %v", asks)
	}
	k.scale.Min = 3
	if asks := k.run(time.Minute, all(0)); len(asks) > 0 {
		t.Fatalf("at min: %v", asks)
	}
}

// A load that swings makes the policy slower, not restless.
func TestFlapsMakeItSlower(t *testing.T) {
	k := byScores()
	halts := 0
	for range 30 { // 10 minutes of 8 s low, 12 s high
		for _, w := range append(k.run(8*time.Second, all(0)), k.run(12*time.Second, all(0.9))...) {
			if w.Verb == pando.VerbHalt {
				halts++
			}
		}
	}
	if halts > flapsMax+1 {
		t.Errorf("%d instances left in 10 minutes of swings", halts)
	}
	if len(k.p.pace.flaps) > flapsMax+1 {
		t.Errorf("%d flaps are remembered", len(k.p.pace.flaps))
	}
	k.run(flapMemory+time.Minute, all(0.5))
	if asks := k.run(6*time.Second, all(0)); len(asks) != 1 {
		t.Errorf("once the flaps are forgotten: %v", asks)
	}
}

func TestANumberOfTheApplicationScales(t *testing.T) {
	k := byScores()
	k.scale.By, k.scale.Target = "queue_depth", 10
	if asks := k.run(time.Minute, all(9)); len(asks) > 0 {
		t.Fatalf("9 each at a target of 10: %v", asks)
	}
	asks := k.run(time.Second, all(20))
	if len(asks) == 0 || asks[0].Verb != pando.VerbReplicate || asks[0].Inputs["wanted"] != 6 ||
		!strings.HasPrefix(asks[0].Reason, "queue_depth is 60 on 3 instances") {
		t.Fatalf("20 each: %+v", asks)
	}
	some := func(i pando.InstanceID) (float64, bool) { return 1, i != "web-2" }
	if asks := k.run(time.Minute, some); len(asks) > 0 {
		t.Fatalf("one has no number: %v", asks)
	}
	asks = k.run(6*time.Second, all(1))
	if len(asks) != 1 || asks[0].Verb != pando.VerbHalt {
		t.Fatalf("1 each: %v", asks)
	}
	for _, odd := range []float64{-5, math.NaN(), math.Inf(1)} {
		for _, w := range k.run(time.Second, all(odd)) {
			if w.Verb == pando.VerbHalt {
				t.Errorf("%g: %+v", odd, w)
			}
		}
	}
}

// No ask leaves the bounds of the spec, at any measurement.
func TestNoAskLeavesItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := byScores()
		k.scale.By = rapid.SampledFrom([]pando.Metric{pando.ByScores, "queue"}).Draw(t, "by")
		k.scale.Target, k.scale.QuietSeconds = 1, 0.4
		k.scale.Min = rapid.IntRange(1, 3).Draw(t, "min")
		k.scale.Max = rapid.IntRange(3, 4).Draw(t, "max")
		for range 50 {
			v := rapid.Float64Range(0, 3).Draw(t, "value")
			for _, w := range k.run(time.Second/5, all(v)) {
				n := len(k.in)
				if w.Verb == pando.VerbReplicate && n >= k.scale.Max ||
					w.Verb == pando.VerbHalt && n <= k.scale.Min {
					t.Fatalf("%d instances, bounds %d to %d: %s", n, k.scale.Min, k.scale.Max, w.Verb)
				}
			}
		}
	})
}
