package meter

import (
	"context"
	"slices"
	"time"

	"pando.run/pando"
)

// measure reads every instance of the services on this host, and sends the result to the listeners.
func (m *Meter) measure(ctx context.Context, services []Service, now time.Time) {
	next := pando.Meters{Host: m.Host.Name, At: now}
	if m.Link != nil {
		next.Link = m.Link()
	}
	own, queues := map[pando.InstanceID]*gauge{}, m.queues(services, now)
	for _, s := range services {
		for _, l := range s.Here {
			g := m.gaugeOf(l.Instance)
			own[l.Instance] = g
			strain, err := l.Box.Strain(ctx)
			if err != nil || !g.read(now, strain, m.Host) {
				continue // it ends, or it has just begun
			}
			if m.Path != nil {
				g.travel(m.Path(l.IfIndex))
			}
			if q, known := queues[l.Device]; known {
				g.wait(q)
			}
			g.shown.Instance, g.shown.Service = l.Instance, s.Key
			next.All = append(next.All, g.shown)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own, m.now = own, next
	for to := range m.listeners {
		offer(to, next)
	}
}

// queues returns the queues of the devices of this host. Nil: no service has a weight for them, or
// the former reading is too recent. Only the goroutine of Run calls it.
func (m *Meter) queues(services []Service, now time.Time) map[string]pando.LinkQueue {
	if m.Queues == nil || now.Before(m.queuesDue) ||
		!slices.ContainsFunc(services, func(s Service) bool { return s.Balance.Weights.Queue > 0 }) {
		return nil
	}
	begun := m.Clock.Now()
	all, err := m.Queues()
	if err != nil {
		m.Log.Debug("the queues of links are not measured", "error", err)
	}
	m.queuesDue = now.Add(queuesRest * m.Clock.Now().Sub(begun))
	return all
}

// gaugeOf returns the gauge of an instance. Only the goroutine of Run uses gauges.
func (m *Meter) gaugeOf(i pando.InstanceID) *gauge {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.own[i]; g != nil {
		return g
	}
	return &gauge{}
}

// offer puts a measurement into a channel of one place, instead of an older one. A slow reader
// misses some, and the meter never waits.
func offer(to chan pando.Meters, v pando.Meters) {
	for {
		select {
		case to <- v:
			return
		default:
		}
		select {
		case <-to:
		default:
		}
	}
}
