package agent

import (
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
)

// A drain shows its connection and its client, has a silent client probed, and ends by drain_max,
// which names the client.
func TestADrainNamesTheClientThatItWaitsFor(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.steering.Open(web)
		b.order("web-1", time.Now())
		b.pass(2 * runner.ReportAfter)
		const want = "waits for 1 connection, idle 1m, of 192.0.2.1:1000, at most 10m in all"
		if i := b.world().Instances["web-1"].V; i.Waits != want || i.Reason != "test" {
			t.Errorf("it %q because %q, want %q because test", i.Waits, i.Reason, want)
		}
		box := b.sandboxes.All()[0]
		if n := box.Probes.Load(); n > 0 {
			t.Errorf("its client is probed after %v", 2*runner.ReportAfter)
		}
		b.pass(2 * runner.NoteAfter)
		if box.Probes.Load() == 0 {
			t.Error("its client is not probed")
		}
		b.decided(want)
		b.pass(11 * time.Minute)
		if i, left := b.world().Instances["web-1"]; left {
			t.Errorf("it is still %s after drain_max", i.V.Phase)
		}
		b.decided("drain_max of 10m was over: 1 flow was ended, of 192.0.2.1:1000")
		for _, d := range b.world().DecisionsOf(web) {
			if !d.Kind.OfAgents() {
				t.Errorf("an agent may not write a decision of the kind %q", d.Kind)
			}
		}
	})
}

// order drains an instance by an intent to halt, stamped by the clock of a server.
func (b *bench) order(id pando.InstanceID, stamp time.Time) {
	b.Helper()
	i := b.world().Instances[id].V.Become(pando.PhaseDraining, stamp, "test")
	i.Walk, i.Halt = true, "halt-1"
	b.put(i)
}

// An operator ends a drain at once, also one that waits for ever.
func TestAnOperatorEndsADrain(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.steering.Open(web)
		b.order("web-1", time.Now())
		b.pass(time.Minute)
		i := b.world().Instances["web-1"].V
		i.EndNow = true
		b.put(i)
		b.pass(time.Second)
		if i, left := b.world().Instances["web-1"]; left {
			t.Errorf("it is still %s (%s)", i.V.Phase, i.V.Reason)
		}
		b.decided("an operator ended the drain: 1 flow was ended, of 192.0.2.1:1000")
	})
}

// drain_max runs on the clock of the agent, whatever the clock of the server says.
func TestDrainMaxIsMeasuredOnOneClock(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, -time.Minute, 0, time.Minute, time.Hour} {
		onBench(t, func(b *bench) {
			b.serving("web-1", 1)
			b.steering.Open(web)
			b.order("web-1", time.Now().Add(skew))
			b.pass(10*time.Minute - time.Second)
			if now := b.world().Instances["web-1"].V; now.Phase != pando.PhaseDraining {
				t.Errorf("skew %v: it is %q (%s) before drain_max is over", skew, now.Phase, now.Reason)
			}
			b.pass(3 * time.Second)
			if now, left := b.world().Instances["web-1"]; left {
				t.Errorf("skew %v: it is %s after drain_max", skew, now.V.Phase)
			}
		})
	}
}

// drain_max continues when the agent starts again, as for an upgrade. It began anew before.
func TestDrainMaxContinuesWhenTheAgentStartsAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		const id = pando.InstanceID("web-1")
		b.serving(id, 1)
		b.steering.Open(web)
		b.order(id, time.Now())
		for range 3 {
			b.pass(3 * time.Minute)
			b.restart()
		}
		if now := b.world().Instances[id].V; now.Phase != pando.PhaseDraining {
			t.Fatalf("it is %q (%s) before drain_max is over", now.Phase, now.Reason)
		}
		b.pass(70 * time.Second)
		if now, there := b.world().Instances[id]; there && now.V.Phase == pando.PhaseDraining {
			t.Errorf("it is %s after drain_max", now.V.Phase)
		}
	})
}
