package agent

import (
	"context"
	"sync/atomic"

	"pando.run/pando"
)

// tally counts the work of this agent since its start.
type tally struct {
	leasesLost                      atomic.Uint64
	merges, mergesFailed, conflicts atomic.Uint64
}

// pushed counts a merge of a branch into main.
func (t *tally) pushed(r pando.MergeResult, err error) {
	if err != nil {
		t.mergesFailed.Add(1)
		return
	}
	t.merges.Add(1)
	t.conflicts.Add(uint64(len(r.Conflicts)))
}

// HostFigures implements pando.HostReporter.
func (w *window) HostFigures(ctx context.Context) (f pando.HostFigures, err error) {
	a := w.agent
	f = pando.HostFigures{
		Host: a.Host.Name, Version: a.Host.Version, Steering: a.crews.steering.Figures(),
		LeasesLost: a.tally.leasesLost.Load(), Merges: a.tally.merges.Load(),
		MergesFailed: a.tally.mergesFailed.Load(), Conflicts: a.tally.conflicts.Load(),
	}
	if a.Logged != nil {
		f.Log = a.Logged()
	}
	if h := a.heralding.herald; h != nil {
		held, _ := h.Held()
		f.Shares = held.Len()
	}
	if f.Losses, err = a.Losses(ctx); err != nil {
		return f, err
	}
	if f.Counters, err = w.Counters(ctx); err != nil {
		return f, err
	}
	f.Uplinks = map[string]pando.LinkQueue{}
	queues := queuesOf(a)
	for _, name := range a.Uplinks {
		if q, known := queues[name]; known {
			f.Uplinks[name] = q
		}
	}
	f.Instances, err = w.Usage(ctx, pando.ServiceKey{})
	return f, err
}
