package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A report of an ordinal that leads is recorded once, with its reason, and outlives the agent. An
// instance that is no ordinal cannot lead.
func TestAnOrdinalLeads(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		if err := b.agent.self.Lead(b.ctx, "web-1", 3); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("an instance that is no ordinal leads: %v", err)
		}
		i := b.world().Instances["web-1"].V
		i.ID, i.Ordinal, i.Phase = "web-2", 2, pando.PhasePlaced
		b.put(i)
		b.ok(b.agent.self.Ready(b.ctx, "web-2"))
		b.pass(time.Second)
		for _, term := range []int64{3, 3, 4, 0} {
			b.ok(b.agent.self.Lead(b.ctx, "web-2", term))
			b.pass(time.Second)
			if got := b.world().Instances["web-2"].V.Term; got != term {
				t.Errorf("the record has term %d, want %d", got, term)
			}
			if term == 4 {
				b.restart()
				b.pass(time.Second)
			}
		}
		var reasons []string
		for _, d := range b.world().DecisionsOf(web) {
			if d.Kind == pando.DecidedLeader {
				reasons = append(reasons, d.Reason)
			}
		}
		if got, want := strings.Join(reasons, "; "), "web-1 leads in term 3; web-1 leads in term 4; "+
			"web-1 follows, and led in term 4"; got != want {
			t.Errorf("the decisions are %q, want %q", got, want)
		}
	})
}

// hooks is a driver whose programs end at once, with a position.
type hooks struct {
	pando.Sandboxes
	starts int
}

func (h *hooks) Start(ctx context.Context, s pando.SandboxSpec) (pando.Sandbox, error) {
	h.starts++
	box, err := h.Sandboxes.Start(ctx, s)
	if err != nil {
		return nil, err
	}
	events := make(chan pando.SandboxEvent, 1)
	events <- pando.SandboxEvent{Kind: pando.SandboxExited}
	return hookBox{box, events}, nil
}

type hookBox struct {
	pando.Sandbox
	events chan pando.SandboxEvent
}

func (h hookBox) Events() <-chan pando.SandboxEvent { return h.events }
func (h hookBox) LastLines(int) []string            { return []string{"a:7"} }

// The agent removes the sandbox of a hook again until it is gone. The hook runs once.
func TestAHookWhoseSandboxStaysRunsOnce(t *testing.T) {
	onBench(t, func(b *bench) {
		h := &hooks{Sandboxes: b.sandboxes}
		b.agent.supplier.Sandboxes = h
		spec := pando.Spec{Name: "web", Kind: pando.Stateful, Command: []string{"db"},
			Scale: pando.Scale{Min: 1, Max: 1}, Hooks: pando.Hooks{Recover: []string{"recover"}}}
		b.put(pando.Revision{Service: web, Number: 2, Spec: spec.WithDefaults(),
			State: pando.RevisionCurrent})
		b.steering.Fail("Remove", 3)
		b.put(pando.Instance{ID: "web-1", Service: web, Host: "h1", Revision: 2, Weight: 100,
			Ordinal: 1, Start: pando.StartRecover, Phase: pando.PhasePlaced, Born: time.Now(),
			Since: time.Now()})
		b.pass(10 * time.Second)
		i := b.world().Instances["web-1"].V
		if h.starts != 1 || i.Position != "a:7" {
			t.Errorf("the hook ran %d times; the instance is %s with position %q: %s", h.starts, i.Phase,
				i.Position, i.Reason)
		}
		i.Start = pando.StartBootstrap
		b.put(i)
		b.pass(10 * time.Second)
		if n := len(b.sandboxes.All()); h.starts != 2 || n != 0 {
			t.Errorf("its program has ended after %d starts, and %d sandboxes are left", h.starts, n)
		}
	})
}
