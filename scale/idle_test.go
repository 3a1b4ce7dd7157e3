package scale

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// traffic runs a policy for a time, at one sample every 200 ms, with some packets a sample and some
// open flows.
func (k *track) traffic(d time.Duration, packets, open float64) (asks []Wish) {
	for end := k.now.Add(d); k.now.Before(end); k.now = k.now.Add(200 * time.Millisecond) {
		s := Sample{At: k.now, Packets: map[pando.InstanceID]float64{},
			Open: map[pando.InstanceID]float64{}}
		for _, i := range k.in {
			k.sum += packets
			s.Packets[i.ID], s.Open[i.ID] = k.sum, open
		}
		if w := k.p.Step(k.scale, k.in, s); w.Verb != "" {
			asks = append(asks, w)
		}
	}
	return asks
}

func TestTheLastInstanceLeavesWhenItIsIdle(t *testing.T) {
	k := &track{in: instances(pando.PhaseInRotation), now: t0,
		scale: pando.Scale{Zero: true, Max: 4, IdleSeconds: 60}}
	for _, c := range []struct {
		name          string
		packets, open float64
	}{{"packets", 1, 0}, {"an open connection", 0, 1}} {
		if asks := k.traffic(3*time.Minute, c.packets, c.open); len(asks) > 0 {
			t.Fatalf("with %s: %+v", c.name, asks)
		}
	}
	if asks := k.traffic(59*time.Second, 0, 0); len(asks) > 0 {
		t.Fatalf("idle for 59 s: %+v", asks)
	}
	asks := k.traffic(2*time.Second, 0, 0)
	if len(asks) != 1 || asks[0].Verb != pando.VerbHalt || asks[0].Instance != "web-0" ||
		!strings.Contains(asks[0].Reason, "scale.idle") {
		t.Fatalf("idle for a minute: %+v", asks)
	}
	k.p.Step(k.scale, k.in, Sample{At: k.now}) // its host gave no answer
	if asks := k.run(3*time.Minute, all(0)); len(asks) > 0 {
		t.Errorf("without a reading: %+v", asks)
	}
	k.scale.Zero, k.scale.Min = false, 1
	if asks := k.traffic(3*time.Minute, 0, 0); len(asks) > 0 {
		t.Errorf("with min 1: %+v", asks)
	}
}

// A metric shrinks a service to one instance, and only idleness takes the last one.
func TestAMetricKeepsTheLastInstance(t *testing.T) {
	k := byScores()
	k.scale.Min, k.scale.Zero, k.scale.IdleSeconds = 0, true, 60
	k.in = k.in[:1]
	if asks := k.run(10*time.Minute, all(0)); len(asks) > 0 {
		t.Errorf("a low score took the last instance: %+v", asks)
	}
	if asks := k.traffic(2*time.Minute, 0, 0); len(asks) != 1 {
		t.Errorf("idle for two minutes: %+v", asks)
	}
}

func TestTrafficStartsTheFirstInstanceAlone(t *testing.T) {
	by := pando.Asker{Kind: pando.AskerTraffic, Name: "h1"}
	zero := pando.Scale{Zero: true, Max: 4, IdleSeconds: 60}
	for _, c := range []struct {
		name  string
		scale pando.Scale
		all   []pando.Instance
		want  pando.IntentState
	}{
		{"none runs", zero, nil, pando.IntentGranted},
		{"one leaves", zero, instances(pando.PhaseDraining), pando.IntentGranted},
		{"one starts", zero, instances(pando.PhaseStarting), pando.IntentRefused},
		{"no idle", pando.Scale{Zero: true, Max: 4}, nil, pando.IntentRefused},
		{"min 1", pando.Scale{Min: 1, Max: 4, IdleSeconds: 60}, nil, pando.IntentRefused},
	} {
		if v := Replicate(Budget{Scale: c.scale, Count: CountOf(c.all)}, by, t0); v.State != c.want {
			t.Errorf("%s: %s (%s)", c.name, v.State, v.Reason)
		}
	}
}
