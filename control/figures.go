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
	unbilled                   []decided // by store revision
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
func (t *tally) count(w *world.World, changes []pando.Record) {
	for _, r := range changes {
		s, ok := r.Key.Service()
		switch {
		case !ok:
		case r.Value == nil && r.Key == s.Key():
			delete(t.decisions, s) // the service is gone
		case r.Key.Kind() == pando.KindDecision && r.Value != nil && r.Created == r.Modified:
			id := string(r.Key[strings.LastIndexByte(string(r.Key), '/')+1:])
			d, known := w.Decisions[id]
			if !known || d.V.Key() != r.Key {
				continue // it cannot be read
			}
			if t.decisions[s] == nil {
				t.decisions[s] = map[pando.DecisionKind]uint64{}
			}
			t.decisions[s][d.V.Kind]++
			t.note(d.V, r.Modified)
		}
	}
}

// Figures implements pando.Operators.
func (c *Control) Figures(context.Context) (pando.ServerFigures, error) {
	t := &c.tally
	f := pando.ServerFigures{
		Terms: t.terms.Load(), Lost: t.lost.Load(), Written: t.written.Load(),
		Conflicts: t.conflicts.Load(), Failed: t.failed.Load(),
		Decisions: map[pando.ServiceKey]map[pando.DecisionKind]uint64{},
	}
	f.Leads = c.leading() != pando.Fence{}
	c.mu.RLock()
	for s, kinds := range t.decisions {
		f.Decisions[s] = maps.Clone(kinds)
	}
	c.mu.RUnlock()
	if c.Process != nil {
		c.Process(&f)
	}
	return f, nil
}
