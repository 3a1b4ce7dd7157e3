package balance

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

var t0 = time.Unix(1000, 0)

// persistent gives a judge the same scores for as long as it takes to exclude.
func persistent(j *Judge, now time.Time, values ...float64) []pando.InstanceID {
	judged(j, now.Add(-badFor), values...)
	judged(j, now.Add(-badFor/2), values...)
	out, _ := judged(j, now, values...)
	return out
}

// judged returns the names of the excluded endpoints after one step.
func judged(
	j *Judge, now time.Time, values ...float64,
) (out []pando.InstanceID, scores []pando.Score) {
	scores = scoresOf(values)
	j.Step(now, scores, nil)
	for _, s := range scores {
		if s.Excluded {
			out = append(out, s.Instance)
		}
	}
	return out, scores
}

func TestExclusion(t *testing.T) {
	for name, c := range map[string]struct {
		values []float64
		want   pando.InstanceID
	}{
		"alike":                         {[]float64{0.5, 0.6, 0.5}, ""},
		"one is far worse":              {[]float64{0.2, 0.2, 0.2, 1.4}, "web-3"},
		"an idle service":               {[]float64{0.001, 0.002, 0.2}, ""},
		"the only one":                  {[]float64{3}, ""},
		"at most half, the worst first": {[]float64{0, 2, 3}, "web-2"},
		"of two, one":                   {[]float64{0, 3}, "web-1"},
		// The other would be at four times its score: worse than both are now.
		"no room in the other": {[]float64{0.4, 1.4}, ""},
		"none":                 {nil, ""},
	} {
		out := persistent(&Judge{}, t0, c.values...)
		if c.want == "" && len(out) > 0 || c.want != "" && (len(out) != 1 || out[0] != c.want) {
			t.Errorf("%s: excluded %v, want %q", name, out, c.want)
		}
	}
}

// A large request keeps a small instance busy for 0.8 s. It is no reason to leave it out.
func TestALongRequestExcludesNothing(t *testing.T) {
	j := &Judge{}
	for at := time.Duration(0); at <= 800*time.Millisecond; at += 100 * time.Millisecond {
		if out, _ := judged(j, t0.Add(at), 0.2, 0.2, 0.2, 1.6); len(out) > 0 {
			t.Fatalf("excluded %v after %s", out, at)
		}
	}
	if out, _ := judged(j, t0.Add(time.Second), 0.2, 0.2, 0.2, 1.6); len(out) != 1 {
		t.Errorf("excluded %v after a second, want web-3", out)
	}
}

// A weak endpoint is out after three measurements. One with a long request uses its whole limit. An
// agent of a former version sends no number of processors.
func TestAWeakEndpointIsOutSoon(t *testing.T) {
	for name, c := range map[string]struct {
		last Load
		want int // measurements until it is out; 0: never
	}{
		"a tenth of the others":           {Load{Pressure: 0.95, Used: 0.02}, 3},
		"a long request":                  {Load{Pressure: 0.95, Used: 0.25}, 0},
		"a light load, nothing waits":     {Load{Pressure: 0.1, Used: 0.02}, 0},
		"an agent that does not count it": {Load{Pressure: 0.95}, 0},
	} {
		j, got := &Judge{}, 0
		for n := 1; n <= 5 && got == 0; n++ {
			scores := scoresOf([]float64{1, 1, 1, 1.7})
			loads := map[pando.InstanceID]Load{}
			for _, s := range scores[:3] {
				loads[s.Instance] = Load{Pressure: 0.5, Used: 0.2}
			}
			loads[scores[3].Instance] = c.last
			j.Step(t0.Add(time.Duration(n)*100*time.Millisecond), scores, loads)
			if scores[3].Excluded {
				got = n
			}
		}
		if got != c.want {
			t.Errorf("%s: out after %d measurements, want %d", name, got, c.want)
		}
		if j.Step(t0, nil, nil); len(j.weak) > 0 {
			t.Errorf("%s: an endpoint that is gone is remembered", name)
		}
	}
}

// Weakness that comes and goes is noise.
func TestOneWeakMeasurementExcludesNothing(t *testing.T) {
	j := &Judge{}
	for n := range 20 {
		scores := scoresOf([]float64{1, 1, 1, 1.7})
		loads := map[pando.InstanceID]Load{scores[3].Instance: {Pressure: 0.9, Used: 0.02}}
		for _, s := range scores[:3] {
			loads[s.Instance] = Load{Used: 0.2}
		}
		if n%2 == 0 {
			loads[scores[3].Instance] = Load{Pressure: 0.9, Used: 0.1}
		}
		at := t0.Add(time.Duration(n) * 100 * time.Millisecond)
		if j.Step(at, scores, loads); scores[3].Excluded {
			t.Fatalf("excluded at step %d", n)
		}
	}
}

// One measurement is noise: a garbage collection, a burst of requests.
func TestOneBadMeasurementExcludesNothing(t *testing.T) {
	j, now := &Judge{}, t0
	for n := range 100 {
		bad := 0.4
		if n%2 == 0 {
			bad = 2
		}
		if out, _ := judged(j, now, 0.4, 0.4, 0.4, bad); len(out) > 0 {
			t.Fatalf("step %d: %v is excluded", n, out)
		}
		now = now.Add(100 * time.Millisecond)
	}
}

// An excluded endpoint has no load, and one that has just returned has little. Beside their scores
// the healthy ones would look bad.
func TestTheExcludedMakeNoOtherLookBad(t *testing.T) {
	j, now := &Judge{}, t0
	persistent(j, now, 0.8, 0.6, 0.6, 2)
	for range 100 { // out for a second, and then in again, with a load that grows slowly
		now = now.Add(20 * time.Millisecond)
		out, _ := judged(j, now, 0.8, 0.6, 0.6, 0)
		if len(out) > 1 || len(out) == 1 && out[0] != "web-3" {
			t.Fatalf("after %s: %v", now.Sub(t0), out)
		}
	}
}

// A return that fails makes the next exclusion twice as long. A good one is forgotten.
func TestAFailedReturnCostsMore(t *testing.T) {
	j, now := &Judge{}, t0
	step := func(bad float64) bool {
		out, _ := judged(j, now, 0.2, 0.2, 0.2, bad)
		return len(out) > 0
	}
	for _, want := range []time.Duration{outMin, 2 * outMin, 4 * outMin, 8 * outMin} {
		if out := persistent(j, now, 0.2, 0.2, 0.2, 2); len(out) == 0 {
			t.Fatal("it is not excluded")
		}
		begun := now
		for step(0) { // it recovers at once, but stays out
			now = now.Add(100 * time.Millisecond)
		}
		if got := now.Sub(begun); got != want {
			t.Errorf("it was out for %s, want %s", got, want)
		}
		now = now.Add(badFor + 100*time.Millisecond)
	}
	for range 400 {
		now = now.Add(100 * time.Millisecond)
		step(0.2)
	}
	if len(j.out) != 0 {
		t.Errorf("it is remembered after a good return: %v", j.out)
	}
	step(2)
	judged(j, now, 0.2, 0.2)
	if len(j.out) != 0 {
		t.Errorf("an endpoint that is gone is remembered: %v", j.out)
	}
}

func TestSmallDifferencesAreEven(t *testing.T) {
	_, got := judged(&Judge{}, t0, 0.50, 0.55, 0.45, 0.80)
	if got[0].Value != got[1].Value || got[1].Value != got[2].Value || got[3].Value != 0.8 {
		t.Errorf("scores become %v", got)
	}
	j := &Judge{}
	persistent(j, t0, 0.2, 0.2, 0.2, 2)
	former := 10.0 // a score that falls to the mean in the time that it was out
	for _, after := range []time.Duration{0, outMin / 2, outMin - 1, outMin} {
		out, got := judged(j, t0.Add(outMin+after), 0.2, 0.2, 0.2, 0)
		if len(out) > 0 || got[3].Value >= former ||
			(got[3].Value > got[0].Value) != (after < outMin) {
			t.Errorf("an idle endpoint, %s after its return: %v", after, got)
		}
		former = got[3].Value
	}
}

// At least half of the endpoints stay, at any scores.
func TestExclusionLeavesHalf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, now := &Judge{}, t0
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			values := rapid.SliceOfN(rapid.Float64Range(0, 10), 0, 9).Draw(t, "scores")
			if out, _ := judged(j, now, values...); 2*len(out) > len(values) {
				t.Fatalf("%v of %v are excluded", out, values)
			}
			rests := []time.Duration{0, time.Second, time.Minute}
			now = now.Add(rapid.SampledFrom(rests).Draw(t, "rest"))
		}
	})
}
