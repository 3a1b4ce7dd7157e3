package inspect

import (
	"context"

	"pando.run/pando"
)

// HostFigures implements pando.HostReporter.
func (w *Inspector) HostFigures(ctx context.Context) (f pando.HostFigures, err error) {
	f = pando.HostFigures{
		Host: w.Host, Version: w.Version, Steering: w.Tables.Figures(),
		LeasesLost: w.Agent.LeasesLost(), Merges: w.Tally.Merges.Load(),
		MergesFailed: w.Tally.MergesFailed.Load(), Conflicts: w.Tally.Conflicts.Load(),
	}
	if w.Logged != nil {
		f.Log = w.Logged()
	}
	f.Shares = w.Agent.Shares()
	if f.Losses, err = w.Agent.Losses(ctx); err != nil {
		return f, err
	}
	if f.Counters, err = w.Counters(ctx); err != nil {
		return f, err
	}
	f.Uplinks = map[string]pando.LinkQueue{}
	queues := w.queues()
	for _, name := range w.Uplinks {
		if q, known := queues[name]; known {
			f.Uplinks[name] = q
		}
	}
	f.Instances, err = w.Usage(ctx, pando.ServiceKey{})
	return f, err
}
