package agent

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A drain shows its connection and its client, has a silent client probed, and ends by drain_max,
// which names the client.
func TestADrainNamesTheClientThatItWaitsFor(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.steering.Open(web)
		b.order("web-1", time.Now())
		b.pass(2 * reportAfter)
		const want = "waits for 1 connection, idle 1m, of 192.0.2.1:1000, at most 10m in all"
		if i := b.world().Instances["web-1"].V; i.Waits != want || i.Reason != "test" {
			t.Errorf("it %q because %q, want %q because test", i.Waits, i.Reason, want)
		}
		box := b.sandboxes.All()[0]
		if n := box.Probes.Load(); n > 0 {
			t.Errorf("its client is probed after %v", 2*reportAfter)
		}
		b.pass(2 * noteAfter)
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

// A text about many flows names the number, the most silent client and its silence.
func TestTheTextOfAWait(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		r, err := b.agent.crews.runner("web-1")
		b.ok(err)
		b.steering.Open(web)
		box := b.sandboxes.All()[0]
		all, err := box.Clients(b.ctx)
		b.ok(err)
		r.leave.counting.Flows = 7
		all[0].Idle, all[0].Unanswered = 27*time.Minute, 6
		for want, clients := range map[string][]pando.Client{
			"waits for 7 connections, the most silent idle 27m, of 192.0.2.1:1000 " +
				"(no answer to 6 probes)": all,
			"waits for 7 flows without a socket": nil,
		} {
			if got := r.waitText(clients); !strings.HasPrefix(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
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
