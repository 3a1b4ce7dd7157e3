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
	"pando.run/pando/agent/runner"
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

// unwell returns the instances that are reported to control.
func (b *bench) unwell() (n int) {
	for _, i := range b.world().Of(web) {
		if i.Unwell != "" {
			n++
		}
	}
	return n
}

// replace drains an instance that does not answer, as control does.
func (b *bench) replace(id pando.InstanceID) {
	b.Helper()
	i := b.world().Instances[id].V
	if i.Unwell == "" {
		b.Fatalf("%s is not reported: %+v", id, i)
	}
	i.Walk = true
	b.put(i.Become(pando.PhaseDraining, time.Now(), i.Unwell))
}

// Instances that stop answering are reported, each once, and this host takes none of them out: it
// does not know how many of the service are out elsewhere. The report goes when one answers again.
func TestInstancesThatDoNotAnswerAreReported(t *testing.T) {
	for _, n := range []int{1, 4, 9} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onBench(t, func(b *bench) {
				var well atomic.Bool
				b.probed(n, func(pando.InstanceID) bool { return !well.Load() })
				b.pass(30 * time.Second)
				if b.takesFlows() != n || b.unwell() != n || b.steering.Broken() > 0 {
					t.Errorf("%d of %d take flows, %d are reported, %d flows were broken", b.takesFlows(), n,
						b.unwell(), b.steering.Broken())
				}
				kinds := map[pando.DecisionKind]int{}
				for _, d := range b.world().DecisionsOf(web) {
					kinds[d.Kind]++
				}
				if kinds[pando.DecidedFailed] > 0 || kinds[pando.DecidedUnhealthy] != n {
					t.Errorf("decisions %v; want one unhealthy for each instance and no failure", kinds)
				}
				b.restart() // the next agent knows the reports
				well.Store(true)
				b.pass(5 * time.Second)
				if b.unwell() != 0 {
					t.Errorf("%d are reported, and all answer again", b.unwell())
				}
			})
		})
	}
}

// The flows of a hung program end after unwellDrainMax.
func TestTheFlowsOfAHungInstanceEnd(t *testing.T) {
	onBench(t, func(b *bench) {
		b.probed(2, func(i pando.InstanceID) bool { return i == "web-00" })
		b.pass(runner.UnwellDrainMax / 4)
		b.replace("web-00")
		b.pass(runner.UnwellDrainMax / 4)
		b.phase("web-00", pando.PhaseDraining)
		b.restart() // the next agent also applies the bound
		b.pass(2 * runner.UnwellDrainMax)
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
		await(runner.UnwellWeight)
		if i := record(); i.Phase != pando.PhaseInRotation || !strings.Contains(i.Reason, "no answer") {
			t.Errorf("it is %s: %s", i.Phase, i.Reason)
		}
		sick.Store(false)
		await(runner.WholeWeight)
		if i := record(); i.Phase != pando.PhaseInRotation {
			t.Errorf("it is %s: %s", i.Phase, i.Reason)
		}
		sick.Store(true)
		await(runner.UnwellWeight)
		b.pass(10 * time.Second)
		b.replace("web-00")
		b.pass(time.Second)
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
			if n := b.unwell(); n > 0 {
				t.Fatalf("%d of 8 are to be replaced", n)
			}
		}
		for _, u := range b.usage(web) {
			n := len(u.Answers)
			if u.Health != pando.HealthOverloaded || n != pando.AnswersKept || u.Answers[n-1].Error == "" {
				t.Errorf("%s is %s, with the answers %v", u.Instance, u.Health, u.Answers)
			}
		}
		for _, i := range b.world().Of(web) {
			if i.Weight != runner.UnwellWeight || !strings.Contains(i.Reason, "overloaded: a quarter") {
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
		"in a loop": {laden{works: sick, answers: well}, 2 * runner.StrayMax},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.probed(4, never)
				b.prober = c.p
				b.restart()
				b.pass(c.after)
				if n := b.unwell(); n != 1 {
					t.Errorf("%d of 4 are to be replaced after %s, want one", n, c.after)
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
	all, err := b.agent.inspector.Usage(b.ctx, s)
	if err != nil || len(all) == 0 {
		b.Fatal(all, err)
	}
	return all
}

// An instance in an endless loop that is alone on its host has fellows on others. It is overloaded
// only as long as none of them answers.
func TestAnInstanceInALoopIsReportedByItsFellowsElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		weight int
		alive  bool
		want   int
	}{
		"a fellow elsewhere answers":      {runner.WholeWeight, true, 1},
		"it is overloaded too":            {runner.UnwellWeight, true, 0},
		"it is on a host without a lease": {runner.WholeWeight, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.probed(1, never)
				b.prober = laden{works: always, answers: never}
				other := pando.Instance{ID: "web-other", Service: web, Host: "far", Revision: 2,
					Phase: pando.PhaseInRotation, Weight: c.weight}
				b.put(other)
				if c.alive {
					b.put(pando.Host{Name: "far"})
				}
				b.restart()
				b.pass(2 * runner.StrayMax)
				if n := b.unwell(); n != c.want {
					t.Errorf("%d reported, want %d", n, c.want)
				}
			})
		})
	}
}
