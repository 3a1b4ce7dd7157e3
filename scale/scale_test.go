package scale

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func instances(phases ...pando.Phase) []pando.Instance {
	var out []pando.Instance
	for n, p := range phases {
		out = append(out, pando.Instance{ID: pando.InstanceID(fmt.Sprintf("web-%d", n)), Phase: p,
			Born: t0.Add(time.Duration(n) * time.Second)})
	}
	return out
}

func TestReplicate(t *testing.T) {
	in, starting := pando.PhaseInRotation, pando.PhaseStarting
	me := pando.Asker{Kind: pando.AskerInstance, Name: "web-0"}
	other := pando.Asker{Kind: pando.AskerInstance, Name: "web-1"}
	nine, three := pando.Scale{Min: 1, Max: 9}, pando.Scale{Min: 1, Max: 3}
	two := pando.Scale{Min: 1, Max: 2}
	slow := pando.Scale{Min: 1, Max: 9, RatePerSecond: 1}
	pin := func(left time.Duration) *pando.Pin { return &pando.Pin{Instances: 2, Until: t0.Add(left)} }
	asked := func(by pando.Asker, ago time.Duration) []Grant {
		return []Grant{{By: by, At: t0.Add(-ago)}}
	}
	draining := CountOf(instances(in, pando.PhaseDraining))
	const ms = time.Millisecond
	tests := []struct {
		name string
		b    Budget
		want pando.IntentState
	}{
		{"room", Budget{Scale: three, Count: CountOf(instances(in, in))}, pando.IntentGranted},
		{"starting instances count as capacity",
			Budget{Scale: two, Count: CountOf(instances(in, starting))}, pando.IntentRefused},
		{"those that leave do not", Budget{Scale: two, Count: draining}, pando.IntentGranted},
		{"those that leave count with stop-first",
			Budget{Scale: two, StopFirst: true, Count: draining}, pando.IntentRefused},
		{"pinned", Budget{Scale: nine, Pin: pin(time.Hour)}, pando.IntentRefused},
		{"the pin is over", Budget{Scale: nine, Pin: pin(-time.Hour)}, pando.IntentGranted},
		{"removing", Budget{Scale: nine, Removing: true}, pando.IntentRefused},
		{"another asked in the same moment", Budget{Scale: nine, Grants: asked(other, 19*ms)},
			pando.IntentCoalesced},
		{"the window is over", Budget{Scale: nine, Grants: asked(other, 21*ms)}, pando.IntentGranted},
		{"the same asks again: another one", Budget{Scale: nine, Grants: asked(me, ms)},
			pando.IntentGranted},
		{"too fast", Budget{Scale: slow, Grants: asked(me, ms)}, pando.IntentRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := Replicate(tt.b, me, t0)
			if v.State != tt.want || v.Reason == "" {
				t.Errorf("got %s (%q), want %s with a reason", v.State, v.Reason, tt.want)
			}
		})
	}
}

func TestHalt(t *testing.T) {
	in := pando.PhaseInRotation
	me := pando.Asker{Kind: pando.AskerInstance, Name: "web-0"}
	one := pando.Scale{Min: 1, Max: 3}
	tests := []struct {
		name string
		b    Budget
		all  []pando.Instance // the first one halts
		want pando.IntentState
	}{
		{"one stays", Budget{Scale: one}, instances(in, in), pando.IntentGranted},
		{"below min", Budget{Scale: pando.Scale{Min: 2, Max: 3}}, instances(in, in), pando.IntentRefused},
		{"one that starts is not yet one that stays", Budget{Scale: one},
			instances(in, pando.PhaseStarting), pando.IntentRefused},
		{"below the pin", Budget{Scale: one, Pin: &pando.Pin{Instances: 2}}, instances(in, in),
			pando.IntentRefused},
		{"it leaves already", Budget{Scale: one}, instances(pando.PhaseDraining, in, in),
			pando.IntentRefused},
		{"the service is being removed", Budget{Scale: one, Removing: true}, instances(in),
			pando.IntentGranted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.b.Count = CountOf(tt.all)
			v := Halt(tt.b, tt.all[0], me, t0)
			if v.State != tt.want || v.Reason == "" {
				t.Errorf("got %s (%q), want %s with a reason", v.State, v.Reason, tt.want)
			}
		})
	}
}

// For any order of asks, there are never more than max instances and never fewer than min in
// rotation.
func TestBudgetsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := pando.Scale{Min: rapid.IntRange(1, 3).Draw(t, "min")}
		s.Max = s.Min + rapid.IntRange(0, 5).Draw(t, "room")
		var in []pando.Instance
		for range s.Min {
			in = append(in, instances(pando.PhaseInRotation)...)
		}
		now := t0
		for range rapid.IntRange(1, 60).Draw(t, "asks") {
			now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * time.Millisecond)
			who := rapid.IntRange(0, len(in)-1).Draw(t, "who")
			by := pando.Asker{Kind: pando.AskerInstance, Name: fmt.Sprint(who)}
			b := Budget{Scale: s, Count: CountOf(in)}
			if rapid.Bool().Draw(t, "grow") {
				if Replicate(b, by, now).State == pando.IntentGranted {
					in = append(in, instances(pando.PhaseInRotation)...)
				}
			} else if Halt(b, in[who], by, now).State == pando.IntentGranted {
				in = append(in[:who:who], in[who+1:]...)
			}
			if n := len(in); n < s.Min || n > s.Max {
				t.Fatalf("%d instances, bounds %d to %d", n, s.Min, s.Max)
			}
		}
	})
}

func TestPolicyGrowsAtOnceAndLeavesLate(t *testing.T) {
	s := pando.Scale{Min: 1, Max: 4, By: pando.ByConnections, Target: 100, QuietSeconds: 5}
	in := instances(pando.PhaseInRotation)
	p := &Policy{}
	total, now := 0.0, t0
	run := func(rate float64, seconds float64) (asks []Wish) {
		for end := now.Add(pando.Seconds(seconds)); now.Before(end); now = now.Add(
			200 * time.Millisecond) {
			total += rate / 5
			w := p.Step(s, in,
				Sample{At: now, Total: map[pando.InstanceID]float64{"web-0": total, "web-1": 0, "web-2": 0}})
			if w.Verb != "" {
				asks = append(asks, w)
			}
		}
		return asks
	}
	if asks := run(80, 3); len(asks) != 0 {
		t.Fatalf("80/s at a target of 100 asked for %v", asks)
	}
	asks := run(250, 1.4)
	if len(asks) == 0 || asks[0].Verb != pando.VerbReplicate {
		t.Fatalf("250/s at a target of 100 asked for %v", asks)
	}
	in = instances(pando.PhaseInRotation, pando.PhaseInRotation, pando.PhaseInRotation)
	if asks := run(20, 4); len(asks) != 0 {
		t.Fatalf("quiet for less than quiet_seconds asked for %v", asks)
	}
	asks = run(20, 4)
	if len(asks) != 1 || asks[0].Verb != pando.VerbHalt || asks[0].Instance != "web-2" {
		t.Fatalf("quiet for longer asked for %v, want the youngest to halt", asks)
	}
}

// F8: at a true rate of 50/s and a target of 100 nothing is asked for, even if samples are missing
// or begin anew.
func TestAMissingSampleIsNoLoad(t *testing.T) {
	s := pando.Scale{Min: 1, Max: 8, By: pando.ByConnections, Target: 100, QuietSeconds: 30}
	in := instances(pando.PhaseInRotation, pando.PhaseInRotation) // 25/s each
	in[0].Since, in[1].Since = t0, t0
	const old = 1_000_000
	for name, answers := range map[string]func(at time.Duration) (both, one, anew bool){
		"one host misses one sample": func(at time.Duration) (bool, bool, bool) {
			return at != 3*time.Second, true, false
		},
		"all miss one sample": func(at time.Duration) (bool, bool, bool) {
			return at != 3*time.Second, at != 3*time.Second, false
		},
		"an agent stalls for 0.5 s": func(at time.Duration) (bool, bool, bool) {
			return at < 3*time.Second || at > 3500*time.Millisecond, true, false
		},
		"an agent stalls for 20 s": func(at time.Duration) (bool, bool, bool) {
			return at < 3*time.Second || at > 23*time.Second, at < 3*time.Second ||
				at > 23*time.Second, false
		},
		"it begins anew after a restart": func(at time.Duration) (bool, bool, bool) {
			return at < 3*time.Second || at > 3300*time.Millisecond, true, at > 3*time.Second
		},
		"the scaler itself is new": func(at time.Duration) (bool, bool, bool) {
			return true, true, false
		},
		"one is known later": func(at time.Duration) (bool, bool, bool) {
			return at > 5*time.Second, true, false
		},
	} {
		p := &Policy{}
		for at := time.Duration(0); at < 29*time.Second; at += 200 * time.Millisecond {
			total := map[pando.InstanceID]float64{}
			both, one, anew := answers(at)
			if one {
				total["web-0"] = old + 25*at.Seconds()
			}
			if both {
				total["web-1"] = old + 25*at.Seconds()
				if anew {
					total["web-1"] = 25 * (at.Seconds() - 3)
				}
			}
			if w := p.Step(s, in, Sample{At: t0.Add(time.Hour + at), Total: total}); w.Verb != "" {
				t.Errorf("%s: after %s it asks to %s: %s", name, at, w.Verb, w.Reason)
				break
			}
		}
	}
}

func TestANewbornCountsFromItsFirstSecondAndSilenceIsNotQuiet(t *testing.T) {
	s := pando.Scale{Min: 1, Max: 8, By: pando.ByConnections, Target: 100, QuietSeconds: 1}
	in := instances(pando.PhaseInRotation, pando.PhaseInRotation)
	now := t0.Add(time.Hour)
	p := &Policy{}
	step := func(total map[pando.InstanceID]float64) Wish {
		now = now.Add(200 * time.Millisecond)
		return p.Step(s, in, Sample{At: now, Total: total})
	}
	for n := range 10 {
		step(map[pando.InstanceID]float64{"web-0": 10 * float64(n)})
	}
	in[1].Since = now
	w := step(map[pando.InstanceID]float64{"web-0": 100, "web-1": 300})
	if w.Verb != pando.VerbReplicate {
		t.Errorf("300 flows to a newborn ask for %+v", w)
	}
	p = &Policy{}
	for range 30 { // web-1 is on a host that is silent
		if w := step(map[pando.InstanceID]float64{"web-0": 0}); w.Verb != "" {
			t.Fatalf("while one host is silent it asks to %s: %s", w.Verb, w.Reason)
		}
	}
}
