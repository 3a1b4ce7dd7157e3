package meter

import (
	"context"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
)

// Run measures until ctx ends.
func (m *Meter) Run(ctx context.Context) {
	defer m.streams.Wait()
	last := map[pando.ServiceKey]time.Time{}
	for ctx.Err() == nil {
		begun := m.Clock.Now()
		services := m.services()
		if len(services) == 0 {
			m.rest()
			clear(last)
			select {
			case <-m.wake:
			case <-ctx.Done():
			}
			continue
		}
		every := m.turn(ctx, services, last, begun)
		_ = pando.Sleep(ctx, m.Clock, max(every-m.Clock.Now().Sub(begun), every/4))
	}
}

// turn measures once and scores each service that is due. It returns the shortest interval.
func (m *Meter) turn(
	ctx context.Context, services []Service, last map[pando.ServiceKey]time.Time, now time.Time,
) time.Duration {
	m.measure(ctx, services, now)
	m.follow(ctx, services)
	every := pando.MeterMax
	for _, s := range services {
		each := s.Balance.Every()
		every = min(every, each)
		if now.Sub(last[s.Key]) < each-each/4 {
			continue
		}
		last[s.Key] = now
		m.score(ctx, s, now)
	}
	return every
}

// rest ends all streams: nothing is measured.
func (m *Meter) rest() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, end := range m.following {
		end()
	}
	clear(m.following)
	clear(m.others)
	clear(m.own)
	clear(m.scores)
	clear(m.judges)
	m.now = pando.Meters{Host: m.Host.Name}
}

// services returns the services to measure, in order, and forgets the others.
func (m *Meter) services() (out []Service) {
	m.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(m.wanted), pando.ServiceKey.Compare)
	m.mu.Unlock()
	for _, k := range keys { // without the lock: the source takes the agent's
		s, wanted := m.Source.Service(k)
		if wanted {
			out = append(out, s)
			continue
		}
		m.mu.Lock()
		delete(m.wanted, k)
		delete(m.scores, k)
		delete(m.judges, k)
		m.mu.Unlock()
	}
	return out
}
