package control

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"

	"pando.run/pando"
	"pando.run/pando/world"
)

// tally counts the work of this control since its start. The lock of the view guards decisions.
type tally struct {
	terms, lost                atomic.Uint64
	written, conflicts, failed atomic.Uint64
	decisions                  map[pando.ServiceKey]map[pando.DecisionKind]uint64
}

// wrote counts the outcome of a write.
func (t *tally) wrote(err error) {
	switch {
	case err == nil:
		t.written.Add(1)
	case errors.Is(err, pando.ErrConflict):
		t.conflicts.Add(1)
	default:
		t.failed.Add(1)
	}
}

// count counts the new decisions of a commit. Each server sees every commit once, so the
// count of a server does not depend on which one leads. The caller holds the lock of the view.
func (t *tally) count(w *world.World, b pando.Batch, reset bool) {
	for _, r := range b.Changes {
		if s, ok := r.Key.Service(); ok && !reset && r.Value == nil && r.Key == s.Key() {
			delete(t.decisions, s) // the service is gone
		}
	}
	for _, d := range newDecisions(w, b, reset) {
		if t.decisions[d.V.Service] == nil {
			t.decisions[d.V.Service] = map[pando.DecisionKind]uint64{}
		}
		t.decisions[d.V.Service][d.V.Kind]++
	}
}

// newDecisions returns the decisions that a commit adds. A store that was read as a whole adds none.
func newDecisions(
	w *world.World, b pando.Batch, reset bool,
) (out []world.Versioned[pando.Decision]) {
	for _, r := range b.Changes {
		if reset || r.Key.Kind() != pando.KindDecision || r.Value == nil || r.Created != r.Modified {
			continue
		}
		id := string(r.Key[strings.LastIndexByte(string(r.Key), '/')+1:])
		if d, known := w.Decisions[id]; known && d.V.Key() == r.Key { // otherwise it cannot be read
			d.Modified = r.Modified
			out = append(out, d)
		}
	}
	return out
}

// Figures implements pando.Operators.
func (c *Control) Figures(context.Context) (pando.ServerFigures, error) {
	t := &c.mirror.tally
	f := pando.ServerFigures{
		Terms: t.terms.Load(), Lost: t.lost.Load(), Written: t.written.Load(),
		Conflicts: t.conflicts.Load(), Failed: t.failed.Load(),
		Decisions: map[pando.ServiceKey]map[pando.DecisionKind]uint64{},
	}
	f.Leads = c.leading() != pando.Fence{}
	c.mirror.mu.RLock()
	for s, kinds := range t.decisions {
		f.Decisions[s] = maps.Clone(kinds)
	}
	c.mirror.mu.RUnlock()
	if c.process != nil {
		c.process(&f)
	}
	return f, nil
}
