package agent

import (
	"context"

	"pando.run/pando"
)

// HostFigures implements pando.HostReporter.
func (w *window) HostFigures(ctx context.Context) (f pando.HostFigures, err error) {
	a := w.agent
	f = pando.HostFigures{
		Host: a.Host.Name, Version: a.Host.Version, Steering: a.crews.steering.Figures(),
		LeasesLost: a.leasesLost.Load(), Merges: a.host.Tally.Merges.Load(),
		MergesFailed: a.host.Tally.MergesFailed.Load(), Conflicts: a.host.Tally.Conflicts.Load(),
	}
	if a.Logged != nil {
		f.Log = a.Logged()
	}
	f.Shares = a.announce.Shares()
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
