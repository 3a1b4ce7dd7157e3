package mirror

import (
	"errors"
	"strings"
	"sync/atomic"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Figures counts the work of this control since its start. The lock of the mirror guards decisions.
type Figures struct {
	Terms, Lost                atomic.Uint64
	Written, Conflicts, Failed atomic.Uint64
	Decisions                  map[pando.ServiceKey]map[pando.DecisionKind]uint64
}

// wrote counts the outcome of a write.
func (t *Figures) wrote(err error) {
	switch {
	case err == nil:
		t.Written.Add(1)
	case errors.Is(err, pando.ErrConflict):
		t.Conflicts.Add(1)
	default:
		t.Failed.Add(1)
	}
}

// count counts the new decisions of a commit. Each server sees every commit once, so the
// count of a server does not depend on which one leads. The caller holds the lock of the mirror.
func (t *Figures) count(w *world.World, b pando.Batch, reset bool) {
	for _, r := range b.Changes {
		if s, ok := r.Key.Service(); ok && !reset && r.Value == nil && r.Key == s.Key() {
			delete(t.Decisions, s) // the service is gone
		}
	}
	for _, d := range NewDecisions(w, b, reset) {
		if t.Decisions[d.V.Service] == nil {
			t.Decisions[d.V.Service] = map[pando.DecisionKind]uint64{}
		}
		t.Decisions[d.V.Service][d.V.Kind]++
	}
}

// NewDecisions returns the decisions that a commit adds. A store that was read as a whole adds none.
func NewDecisions(
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
