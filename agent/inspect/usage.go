package inspect

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
)

// Usage implements pando.HostAgent. After a failure an instance has the reason instead.
func (w *Inspector) Usage(ctx context.Context, s pando.ServiceKey) ([]pando.InstanceUsage, error) {
	here := w.Agent.Runners()
	w.Records.Lock()
	var all []runner.Status
	said, elsewhere := map[pando.InstanceID]*runner.Runner{}, map[pando.InstanceID]bool{}
	for _, r := range here {
		if r.Shown.Runs && (s.Name == "" || r.Service == s) {
			all = append(all, r.Shown)
			said[r.ID] = r
			spec, _ := w.Records.World.SpecOf(r.Service, r.Shown.Instance.Revision)
			elsewhere[r.ID] = len(spec.Endpoints) > 0
		}
	}
	w.Records.Unlock()
	counters, err := w.Counters(ctx)
	if err != nil {
		return nil, err
	}
	counted := map[pando.InstanceID]pando.EndpointCounters{}
	for _, c := range counters {
		counted[c.Instance] = c
	}
	queues := w.queues()
	out := []pando.InstanceUsage{}
	for _, r := range all {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		u := pando.InstanceUsage{
			Instance: r.Instance.ID, Service: r.Instance.Service, Host: w.Host, At: w.Clock.Now(),
		}
		u.Health, u.Answers = said[u.Instance].Health(r.Instance.Phase)
		use, err := r.Box.Usage(ctx)
		if err == nil {
			u.Connections, err = r.Box.Flows(ctx)
		}
		if err != nil {
			u.Missing = records.OneLine(err.Error(), records.EvidenceBytesMax)
		}
		if !elsewhere[u.Instance] { // nothing measures a program that Pando does not run
			measure(&u, use, err)
		}
		if w.Traffic != nil {
			u.BytesIn, u.BytesOut = w.Traffic(r.Link.Host)
		}
		c := counted[u.Instance]
		u.Metrics, u.Flows, u.Score = w.metricsOf(u.Instance), c.Flows, c.Score
		if c.Score != nil {
			u.Meter = c.Meter
		}
		if q, known := queues[r.Link.Host]; known {
			u.Queue = &q
		}
		out = append(out, u)
	}
	return out, nil
}

// measure takes the use of an instance. A number that could not be read is left out.
func measure(u *pando.InstanceUsage, use pando.Usage, err error) {
	if err != nil {
		return
	}
	u.CPUSeconds = max(0, use.CPU.Seconds())
	if use.CPU < 0 {
		u.Missing = "its processor time cannot be read"
	}
	if use.MemoryBytes >= 0 {
		u.MemoryBytes = &use.MemoryBytes
	}
	if use.PIDs >= 0 {
		u.PIDs = &use.PIDs
	}
}

// queues returns the queues of the devices of this host, as far as they are known.
func (w *Inspector) queues() map[string]pando.LinkQueue {
	if w.Queues == nil {
		return nil
	}
	all, err := w.Queues()
	if err != nil {
		w.Log.Debug("the queues of links are not reported", "error", err)
	}
	return all
}
