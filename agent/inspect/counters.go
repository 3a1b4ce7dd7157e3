package inspect

import (
	"context"

	"pando.run/pando"
)

// Meters implements pando.HostAgent.
func (w *Inspector) Meters(ctx context.Context) (<-chan pando.Meters, error) {
	return w.Meter.Listen(ctx)
}

// Counters implements pando.HostAgent. It adds the measurements of the host, and the numbers of
// the applications.
func (w *Inspector) Counters(ctx context.Context) ([]pando.EndpointCounters, error) {
	all, err := w.Steering.Counters(ctx)
	if err != nil {
		return nil, err
	}
	open := w.Sweeper.Last().Flows
	scores := map[pando.InstanceID]pando.Score{}
	for n := range all {
		c := &all[n]
		c.Open, c.Host = open[c.Instance], w.Host
		m, known := w.Meter.Of(c.Instance)
		m.Instance, m.Service, m.Metrics = c.Instance, c.Service, w.metricsOf(c.Instance)
		if known || len(m.Metrics) > 0 {
			c.Meter = &m
		}
		if !known {
			continue
		}
		if _, listed := scores[c.Instance]; !listed {
			for _, s := range w.Meter.Scores(c.Service) {
				scores[s.Instance] = s
			}
		}
		if s, ok := scores[c.Instance]; ok {
			c.Score = &s
		}
	}
	return all, nil
}
