package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// wellness answers live probes. sick selects the instances that fail them.
type wellness struct {
	mu   sync.Mutex
	sick func(pando.InstanceID) bool
}

func (w *wellness) Probe(_ context.Context, _ pando.Probe, box pando.Sandbox, _ pando.Port) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sick(box.Instance()) {
		return errors.New("no answer in time")
	}
	return nil
}

// probed puts n instances of a revision with live probes into rotation. Each has a flow.
func (b *bench) probed(n int, sick func(pando.InstanceID) bool) {
	b.Helper()
	b.prober = &wellness{sick: sick}
	b.restart() // an agent with the prober
	spec := pando.Spec{
		Name: "web", Command: []string{"web"}, Scale: pando.Scale{Min: n, Max: n},
		Health: pando.Health{Live: pando.Probe{Kind: pando.ProbeTCP}, IntervalSeconds: 1, Fall: 3},
	}
	b.put(pando.Revision{
		Service: web, Number: 2, Spec: spec.WithDefaults(), State: pando.RevisionCurrent,
	})
	for k := range n {
		b.serving(pando.InstanceID(fmt.Sprintf("web-%02d", k)), 2)
		b.steering.Open(web)
	}
}

func (b *bench) takesFlows() (n int) {
	for _, i := range b.world().Of(web) {
		if i.Phase.TakesFlows() {
			n++
		}
	}
	return n
}

// All instances of an overloaded service stop answering in one second. At most a quarter is
// drained, and no flow breaks.
func TestOverloadTakesNoMoreThanAQuarterOut(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 3: 1, 4: 1, 8: 2, 9: 2, 12: 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.probed(n, func(pando.InstanceID) bool { return true })
				for range 30 {
					b.pass(time.Second)
					if in := b.takesFlows(); n-in > most {
						t.Fatalf("%d of %d are out of rotation, want at most %d", n-in, n, most)
					}
				}
				if in := b.takesFlows(); in != n-most {
					t.Errorf("%d of %d take flows, want %d", in, n, n-most)
				}
				if b.steering.Broken() > 0 {
					t.Errorf("%d flows were broken", b.steering.Broken())
				}
				kinds := map[pando.DecisionKind]int{}
				for _, d := range b.world().DecisionsOf(web) {
					kinds[d.Kind]++
				}
				if kinds[pando.DecidedFailed] > 0 || kinds[pando.DecidedUnhealthy] != n {
					t.Errorf("decisions %v; want one unhealthy for each instance and no failure", kinds)
				}
				b.pass(10 * time.Minute)
				if in := b.takesFlows(); in < 1 {
					t.Error("after ten minutes without a replacement none is left")
				}
			})
		})
	}
}

// Once a replacement serves, the next instance that does not answer may be drained.
func TestTheNextGoesOnceOneIsReplaced(t *testing.T) {
	onBench(t, func(b *bench) {
		b.probed(4, func(i pando.InstanceID) bool { return strings.HasPrefix(string(i), "web-0") })
		b.pass(10 * time.Second)
		for k := range 4 {
			if in := b.takesFlows(); in != 3 {
				t.Fatalf("%d take flows after %d replacements, want 3", in, k)
			}
			b.serving(pando.InstanceID(fmt.Sprintf("web-1%d", k)), 2)
			b.pass(10 * time.Second)
		}
		if in := b.takesFlows(); in != 4 {
			t.Errorf("%d take flows once all are replaced, want 4", in)
		}
	})
}

// The flows of a hung program end after unwellDrainMax.
func TestTheFlowsOfAHungInstanceEnd(t *testing.T) {
	onBench(t, func(b *bench) {
		b.probed(2, func(i pando.InstanceID) bool { return i == "web-00" })
		b.pass(unwellDrainMax / 2)
		b.phase("web-00", pando.PhaseDraining)
		b.restart() // the next agent also applies the bound
		b.pass(unwellDrainMax)
		if i, ok := b.world().Instances["web-00"]; ok {
			t.Errorf("it is still %s (%s)", i.V.Phase, i.V.Reason)
		}
	})
}

// A revision on trial that does not answer has failed, and its rollout ends.
func TestARevisionOnTrialFails(t *testing.T) {
	onBench(t, func(b *bench) {
		b.probed(4, func(i pando.InstanceID) bool { return i == "web-00" })
		svc := b.world().Services[web].V
		svc.Target, svc.Latest = 2, 2
		b.put(svc)
		b.pass(10 * time.Second)
		for _, d := range b.world().DecisionsOf(web) {
			if d.Kind == pando.DecidedFailed && d.Instance == "web-00" {
				return
			}
		}
		t.Error("it is no failure")
	})
}

// An instance that stops answering gets fewer new flows before it is taken out, and its whole share
// when it answers again. Overload is not death.
func TestOverloadLowersTheWeightFirst(t *testing.T) {
	onBench(t, func(b *bench) {
		var sick atomic.Bool
		b.probed(4, func(i pando.InstanceID) bool { return i == "web-00" && sick.Load() })
		record := func() pando.Instance { return b.world().Instances["web-00"].V }
		await := func(weight int) {
			t.Helper()
			for range 60 {
				if record().Weight == weight {
					return
				}
				b.pass(250 * time.Millisecond)
			}
			t.Fatalf("the record is %+v, want the weight %d", record(), weight)
		}
		b.pass(3 * time.Second)
		sick.Store(true)
		await(unwellWeight)
		if i := record(); i.Phase != pando.PhaseInRotation || !strings.Contains(i.Reason, "no answer") {
			t.Errorf("it is %s: %s", i.Phase, i.Reason)
		}
		sick.Store(false)
		await(wholeWeight)
		if i := record(); i.Phase != pando.PhaseInRotation {
			t.Errorf("it is %s: %s", i.Phase, i.Reason)
		}
		sick.Store(true)
		await(unwellWeight)
		b.pass(10 * time.Second)
		b.phase("web-00", pando.PhaseDraining)
		if b.steering.Broken() > 0 {
			t.Errorf("%d flows were broken", b.steering.Broken())
		}
	})
}

// laden answers no live probe in time. The instances in works use processor time meanwhile.
type laden struct{ works, answers func(pando.InstanceID) bool }

func (l laden) Probe(_ context.Context, _ pando.Probe, box pando.Sandbox, _ pando.Port) error {
	if l.works(box.Instance()) {
		box.(*sim.Sandbox).CPU.Add(int64(time.Second / 2))
	}
	if l.answers(box.Instance()) {
		return nil
	}
	return fmt.Errorf("no answer in time: %w", pando.ErrBusy)
}

// With ten times the load that a service can take, all its instances work and none answers in time.
// Each gets fewer flows, and none is taken out.
func TestOverloadOfAllTakesNoneOut(t *testing.T) {
	onBench(t, func(b *bench) {
		b.probed(8, never)
		b.prober = laden{works: always, answers: never}
		b.restart()
		for range 10 * 60 {
			b.pass(time.Second)
			if in := b.takesFlows(); in != 8 {
				t.Fatalf("%d of 8 take flows", in)
			}
		}
		for _, u := range b.usage(web) {
			n := len(u.Answers)
			if u.Health != pando.HealthOverloaded || n != pando.AnswersKept || u.Answers[n-1].Error == "" {
				t.Errorf("%s is %s, with the answers %v", u.Instance, u.Health, u.Answers)
			}
		}
		for _, i := range b.world().Of(web) {
			if i.Weight != unwellWeight || !strings.Contains(i.Reason, "overloaded: a quarter") {
				t.Errorf("%s: weight %d, %s", i.ID, i.Weight, i.Reason)
			}
		}
	})
}

// A hung instance uses no processor time, and one in an endless loop is alone with its trouble.
// Both are replaced.
func TestAHungInstanceIsNoOverloadedOne(t *testing.T) {
	sick := func(i pando.InstanceID) bool { return i == "web-00" }
	well := func(i pando.InstanceID) bool { return !sick(i) }
	for name, c := range map[string]struct {
		p     laden
		after time.Duration
	}{
		"hung":      {laden{works: never, answers: well}, 15 * time.Second},
		"in a loop": {laden{works: sick, answers: well}, 2 * strayMax},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.probed(4, never)
				b.prober = c.p
				b.restart()
				b.pass(c.after)
				if in := b.takesFlows(); in != 3 {
					t.Errorf("%d of 4 take flows after %s, want 3", in, c.after)
				}
			})
		})
	}
}

func always(pando.InstanceID) bool { return true }
func never(pando.InstanceID) bool  { return false }

// usage returns the use of the instances of a service here.
func (b *bench) usage(s pando.ServiceKey) []pando.InstanceUsage {
	b.Helper()
	all, err := b.agent.Usage(b.ctx, s)
	if err != nil || len(all) == 0 {
		b.Fatal(all, err)
	}
	return all
}
