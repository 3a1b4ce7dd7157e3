package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// outcome is the result of a simulated load.
type outcome struct {
	late    float64 // instance seconds that the load needed and that did not serve yet
	turns   int     // changes from growing to shrinking, or back
	most    int     // instances
	reasons []string
}

// simulate runs a policy over a load in virtual time. An instance serves boot after its ask.
func simulate(s pando.Scale, length, boot time.Duration, load func(float64) float64) outcome {
	var p Policy
	var o outcome
	var all []pando.Instance
	last := pando.Verb("")
	add := func(now time.Time) {
		all = append(all, pando.Instance{ID: pando.InstanceID(fmt.Sprint("i", len(o.reasons))),
			Phase: pando.PhaseStarting, Born: now, Since: now})
	}
	add(t0)
	all[0].Phase = pando.PhaseInRotation
	const step = 200 * time.Millisecond
	for at := time.Duration(0); at < length; at += step {
		now := t0.Add(at)
		sample := Sample{At: now, Gauge: map[pando.InstanceID]float64{}}
		serving := 0
		for n := range all {
			if all[n].Phase == pando.PhaseStarting && now.Sub(all[n].Born) >= boot {
				all[n].Phase, all[n].Since = pando.PhaseInRotation, now
			}
			if all[n].Phase == pando.PhaseInRotation {
				serving++
			}
		}
		for _, i := range all {
			if i.Phase == pando.PhaseInRotation {
				sample.Gauge[i.ID] = load(at.Seconds()) / float64(serving)
			}
		}
		need := min(math.Ceil(load(at.Seconds())/s.Target), float64(s.Max))
		o.late += max(0, need-float64(serving)) * step.Seconds()
		w := p.Step(s, all, sample)
		if w.Verb == "" {
			continue
		}
		if o.reasons = append(o.reasons, w.Reason); last != "" && w.Verb != last {
			o.turns++
		}
		if last = w.Verb; w.Verb == pando.VerbReplicate {
			add(now)
		} else {
			for n := range all {
				if all[n].ID == w.Instance {
					all = append(all[:n], all[n+1:]...)
					break
				}
			}
		}
		o.most = max(o.most, len(all))
	}
	return o
}

// A forecast starts earlier on a ramp, and neither flaps nor grows more under any other load.
func TestAForecastStartsWhatARampNeeds(t *testing.T) {
	noise := func(at float64) float64 {
		r := rand.New(rand.NewPCG(7, uint64(at*1000)))
		return 500 * (0.8 + 0.4*r.Float64())
	}
	for name, c := range map[string]struct {
		load   func(float64) float64
		better bool
	}{
		"ramp":     {func(at float64) float64 { return min(100+8*at, 1500) }, true},
		"step":     {func(at float64) float64 { return 100 + 900*math.Floor(min(at/100, 1)) }, false},
		"noise":    {noise, false},
		"sawtooth": {func(at float64) float64 { return 100 + 8*math.Mod(at, 120) }, true},
		"falling":  {func(at float64) float64 { return max(100, 1500-8*at) }, false},
	} {
		s := pando.Scale{Min: 1, Max: 40, By: "queue_depth", Target: 100, QuietSeconds: 30}
		plain := simulate(s, 6*time.Minute, 10*time.Second, c.load)
		s.AheadSeconds = 20
		ahead := simulate(s, 6*time.Minute, 10*time.Second, c.load)
		t.Logf("%s: late %.0f s without, %.0f s with a forecast; turns %d, %d; most %d, %d", name,
			plain.late, ahead.late, plain.turns, ahead.turns, plain.most, ahead.most)
		if c.better && ahead.late > plain.late/2 {
			t.Errorf("%s: %.0f s late, without a forecast %.0f", name, ahead.late, plain.late)
		}
		if !c.better && ahead.late > plain.late {
			t.Errorf("%s: a forecast makes it later: %.0f, %.0f", name, ahead.late, plain.late)
		}
		if ahead.turns > plain.turns {
			t.Errorf("%s: it turns %d times, without a forecast %d", name, ahead.turns, plain.turns)
		}
		if !c.better && ahead.most > plain.most {
			t.Errorf("%s: %d instances, without a forecast %d", name, ahead.most, plain.most)
		}
		forecast := strings.Contains(strings.Join(ahead.reasons, "\n"), "forecast")
		if forecast != c.better {
			t.Errorf("%s: a reason with a forecast: %v", name, forecast)
		}
	}
}

// A window keeps a bounded number of points.
func TestATrendIsBounded(t *testing.T) {
	var tr trend
	for n := range 10_000 {
		tr.note(t0.Add(time.Duration(n)*time.Millisecond*20), float64(n), 10*time.Second)
	}
	if n := len(tr.points); n > aheadPoints+1 {
		t.Errorf("%d points", n)
	}
	if s, ok := tr.slope(10 * time.Second); !ok || math.Abs(s-50) > 1 {
		t.Errorf("the slope is %g, %v, want 50", s, ok)
	}
}
