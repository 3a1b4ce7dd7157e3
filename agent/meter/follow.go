package meter

import (
	"context"
	"time"

	"pando.run/pando"
)

// Listen returns the measurements of this host from now on, until ctx ends. The channel has one
// place for the newest one. ErrTooLarge: there are listenersMax others.
func (m *Meter) Listen(ctx context.Context) (<-chan pando.Meters, error) {
	to := make(chan pando.Meters, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.listeners) >= listenersMax {
		return nil, pando.ErrTooLarge
	}
	m.listeners[to] = true
	if !m.now.At.IsZero() {
		to <- m.now
	}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.listeners, to)
		close(to)
	})
	return to, nil
}

// listenersMax bounds the hosts that follow this one. There is one for each host that steers a
// measured service of this one.
const listenersMax = 2 * pando.HostSlots

// follow opens the streams of the hosts with instances of measured services, and ends the others.
func (m *Meter) follow(ctx context.Context, services []Service) {
	wanted := map[pando.HostName]pando.Host{}
	for _, s := range services {
		if !s.Balance.Scored() {
			continue // each host measures its own for control
		}
		for _, h := range s.Others {
			wanted[h.Name] = h
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, end := range m.following {
		if _, ok := wanted[name]; !ok {
			end()
			delete(m.following, name)
			delete(m.others, name)
		}
	}
	for name, h := range wanted {
		if m.following[name] != nil {
			continue
		}
		own, end := context.WithCancel(ctx)
		m.following[name] = end
		m.streams.Go(func() { m.receive(own, h) })
	}
}

// A stream that ends is opened again after a wait that doubles between these bounds. A host of an
// older build has no such stream: it costs one request in retryWaitMax.
const (
	retryWaitMin = 100 * time.Millisecond
	retryWaitMax = 5 * time.Second
)

// receive keeps the newest measurement of a host until ctx ends.
func (m *Meter) receive(ctx context.Context, h pando.Host) {
	wait := retryWaitMin
	for ctx.Err() == nil {
		from, err := m.Peers.Meters(ctx, h)
		if err == nil {
			for v := range from {
				wait = retryWaitMin
				m.take(h, v)
			}
		}
		if pando.Sleep(ctx, m.Clock, wait) != nil {
			return
		}
		wait = min(2*wait, retryWaitMax)
	}
}

// take stores a measurement of a host. A host speaks for itself alone.
func (m *Meter) take(h pando.Host, v pando.Meters) {
	v.Host = h.Name
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.following[h.Name] != nil {
		m.others[h.Name] = report{m.Clock.Now(), v}
	}
}
