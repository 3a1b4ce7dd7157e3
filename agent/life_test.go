package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

func TestAnInstanceHasOneRequestAtATime(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		ctx, cancel := context.WithCancel(b.ctx)
		first := make(chan pando.Intent)
		go func() {
			i, _ := b.agent.self.Replicate(ctx, "web-1", pando.Ask{Reason: "load"})
			first <- i
		}()
		synctest.Wait()
		pending, err := b.agent.self.Halt(b.ctx, "web-1", pando.Ask{})
		if !errors.Is(err, pando.ErrConflict) || pending.Intent.Verb != pando.VerbReplicate {
			t.Errorf("a second request got %+v, %v; want a conflict that names the pending one",
				pending.Intent, err)
		}
		cancel() // no control answers here; the asker hangs up
		if i := <-first; i.ID != pending.Intent.ID {
			t.Errorf("the pending request is %s, the conflict named %s", i.ID, pending.Intent.ID)
		}
		if v, err := b.agent.self.Describe(b.ctx, "web-1"); err != nil || v.Pending != nil {
			t.Errorf("after the answer %v is pending (%v)", v.Pending, err)
		}
	})
}

func TestOnlyItsOwnInstanceIsKnown(t *testing.T) {
	onBench(t, func(b *bench) {
		b.put(pando.Instance{ID: "web-9", Service: web, Host: "h2", Revision: 1, Phase: pando.PhasePlaced,
			Reason: "elsewhere"})
		if _, err := b.agent.self.Describe(b.ctx, "web-9"); !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("an instance of another host: %v", err)
		}
		if len(b.sandboxes.All()) > 0 {
			t.Error("an instance of another host was started here")
		}
	})
}

func TestDieWaitsForFlowsAndForTheMerge(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		_, err := b.agent.self.Die(b.ctx, "web-1", pando.Ask{})
		b.refused(err) // not halted
		flow, ok := b.steering.Open(web)
		if !ok || flow != "web-1" {
			t.Fatalf("the flow went to %q", flow)
		}
		b.write("web-1", "one", true)
		b.drain("web-1", false)
		_, err = b.agent.self.Die(b.ctx, "web-1", pando.Ask{})
		b.refused(err) // a flow is open
		b.steering.End("web-1")
		time.Sleep(time.Second)
		b.phase("web-1", pando.PhaseDrained)
		_, err = b.agent.self.Die(b.ctx, "web-1", pando.Ask{})
		b.refused(err) // its commit is not in main
		b.write("web-1", "two", false)
		_, err = b.agent.self.StatePush(b.ctx, "web-1")
		b.ok(err)
		_, err = b.agent.self.Die(b.ctx, "web-1", pando.Ask{})
		b.ok(err)
		time.Sleep(time.Second)
		b.gone("web-1")
		if log, hits := b.merged("log"), b.merged("hits"); log != "one\ntwo\n" || hits != "2" {
			t.Errorf("main has the log %q and %s hits", log, hits)
		}
		if b.steering.Broken() > 0 {
			t.Errorf("%d flows were broken", b.steering.Broken())
		}
	})
}

func TestWhatACrashedInstanceCommittedIsSalvaged(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.write("web-1", "kept", true)
		b.write("web-1", "not committed", false)
		b.sandboxes.All()[0].Crash()
		time.Sleep(time.Second)
		b.gone("web-1")
		if log := b.merged("log"); log != "kept\n" {
			t.Errorf("main has the log %q", log)
		}
		kinds := map[pando.DecisionKind]int{}
		for _, d := range b.world().DecisionsOf(web) {
			kinds[d.Kind]++
		}
		if kinds[pando.DecidedFailed] != 1 || kinds[pando.DecidedSalvage] != 1 {
			t.Errorf("decisions %v; want one failure and one salvage", kinds)
		}
	})
}

// An instance that did its work and exited with 0 has not failed: that of a run, and that of a
// service that is not restarted. Another clean exit is a failure.
func TestAnInstanceThatDidItsWorkHasNotFailed(t *testing.T) {
	for _, c := range []struct {
		restart pando.RestartPolicy
		run     *pando.RunPart
		crash   bool
		want    pando.DecisionKind
	}{
		{pando.RestartAlways, nil, false, pando.DecidedFailed},
		{pando.RestartNo, nil, false, pando.DecidedEnded},
		{pando.RestartOnFailure, nil, false, pando.DecidedEnded},
		{pando.RestartAlways, &pando.RunPart{Number: 1}, false, pando.DecidedEnded},
		{pando.RestartAlways, &pando.RunPart{Number: 1}, true, pando.DecidedFailed},
		{pando.RestartNo, nil, true, pando.DecidedFailed},
	} {
		onBench(t, func(b *bench) {
			b.put(pando.Revision{Service: web, Number: 1, State: pando.RevisionCurrent,
				Spec: pando.Spec{Name: "web", Command: []string{"web"}, Restart: c.restart,
					Scale: pando.Scale{Min: 1, Max: 3}}.WithDefaults()})
			b.put(pando.Instance{ID: "web-1", Service: web, Host: "h1", Revision: 1, Weight: 100,
				Phase: pando.PhasePlaced, Born: time.Now(), Since: time.Now(), Run: c.run})
			b.pass(time.Second)
			if c.crash {
				b.sandboxes.All()[0].Crash()
			} else {
				b.sandboxes.All()[0].Finish()
			}
			b.pass(time.Second)
			var got []pando.DecisionKind
			for _, d := range b.world().DecisionsOf(web) {
				got = append(got, d.Kind)
			}
			if !slices.Contains(got, c.want) || slices.Contains(got, pando.DecidedFailed) !=
				(c.want == pando.DecidedFailed) {
				t.Errorf("%+v: %v", c, got)
			}
		})
	}
}

// An instance that does not use the API is stopped after its drain, and its last writes are merged.
func TestAWalkedInstanceIsStoppedAndMerged(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.write("web-1", "last words", false)
		b.drain("web-1", true)
		time.Sleep(time.Second)
		b.gone("web-1")
		if log := b.merged("log"); log != "last words\n" {
			t.Errorf("main has the log %q", log)
		}
	})
}

func TestADrainIsToldAgainAfterTheAgentDied(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.drain("web-1", false)
		time.Sleep(time.Second)
		b.phase("web-1", pando.PhaseDrained)
		b.restart()
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		defer cancel()
		events, err := b.agent.self.Events(ctx, "web-1", 1<<40) // an id of the former agent
		b.ok(err)
		for e := range events {
			if e.Kind == pando.EventDrained {
				return
			}
		}
		t.Error("it received no drained event")
	})
}

func TestABudgetIsToldWhenItChanges(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		ctx, cancel := context.WithCancel(b.ctx)
		events, err := b.agent.self.Events(ctx, "web-1", 0)
		b.ok(err)
		svc := b.world().Services[web].V
		svc.Reason = "no event for an instance"
		b.put(svc)
		svc.Pin = &pando.Pin{Instances: 2}
		b.put(svc)
		told := 0
		go func() {
			for e := range events {
				if e.Kind == pando.EventBudget {
					told++
				}
			}
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if told > 2 { // one for its start, one for the pin
			t.Errorf("it received its budget %d times", told)
		}
	})
}

func TestEachRevisionMergesByItsOwnTypes(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.revision(2, pando.StateLast)
		b.serving("web-2", 2)
		for range 2 {
			b.ok(b.agent.self.StatePatch(b.ctx, "web-1", "hits", []byte("1")))
		}
		err := b.agent.self.StatePatch(b.ctx, "web-2", "hits", []byte("1"))
		if !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("a delta to a value of revision 2: %v", err)
		}
		v, err := b.agent.self.StateGet(b.ctx, "web-1", "hits")
		if b.ok(err); string(v.Bytes) != "2" || v.Type != pando.StateCounter {
			t.Errorf("revision 1 reads %q, a %s", v.Bytes, v.Type)
		}
	})
}
