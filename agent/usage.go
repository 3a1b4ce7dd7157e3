package agent

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/agent/records"
)

// Usage implements pando.HostAgent. After a failure an instance has the reason instead.
func (w *window) Usage(ctx context.Context, s pando.ServiceKey) ([]pando.InstanceUsage, error) {
	a := w.agent
	a.records.Lock()
	var all []status
	said, elsewhere := map[pando.InstanceID]*answers{}, map[pando.InstanceID]bool{}
	for _, r := range a.crews.everyRunner() {
		if r.shown.runs && (s.Name == "" || r.service == s) {
			all = append(all, r.shown)
			said[r.id] = &r.answers
			spec, _ := a.records.World.SpecOf(r.service, r.shown.inst.Revision)
			elsewhere[r.id] = len(spec.Endpoints) > 0
		}
	}
	a.records.Unlock()
	counters, err := w.Counters(ctx)
	if err != nil {
		return nil, err
	}
	counted := map[pando.InstanceID]pando.EndpointCounters{}
	for _, c := range counters {
		counted[c.Instance] = c
	}
	queues := queuesOf(a)
	out := []pando.InstanceUsage{}
	for _, r := range all {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		u := pando.InstanceUsage{
			Instance: r.inst.ID, Service: r.inst.Service, Host: a.Host.Name, At: a.Clock.Now(),
		}
		u.Health, u.Answers = said[u.Instance].of(r.inst.Phase)
		use, err := r.box.Usage(ctx)
		if err == nil {
			u.Connections, err = r.box.Flows(ctx)
		}
		if err != nil {
			u.Missing = records.OneLine(err.Error(), records.EvidenceBytesMax)
		}
		if !elsewhere[u.Instance] { // nothing measures a program that Pando does not run
			measure(&u, use, err)
		}
		if a.Traffic != nil {
			u.BytesIn, u.BytesOut = a.Traffic(r.link.Host)
		}
		c := counted[u.Instance]
		u.Metrics, u.Flows, u.Score = a.crews.metricsOf(u.Instance), c.Flows, c.Score
		if c.Score != nil {
			u.Meter = c.Meter
		}
		if q, known := queues[r.link.Host]; known {
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

// queuesOf returns the queues of the devices of this host, as far as they are known.
func queuesOf(a *Agent) map[string]pando.LinkQueue {
	if a.Queues == nil {
		return nil
	}
	all, err := a.Queues()
	if err != nil {
		a.Log.Debug("the queues of links are not reported", "error", err)
	}
	return all
}
