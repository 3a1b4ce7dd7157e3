package agent

import (
	"context"
	"reflect"
	"sync"
	"time"

	"pando.run/pando"
)

// eventsKept is the number of events of an instance that a listener can request again.
const eventsKept = 256

// budget is the number of instances that a service may have, as sent to its instances.
type budget struct {
	Min int        `json:"min"`
	Max int        `json:"max"`
	Pin *pando.Pin `json:"pin"`
}

// events holds the recent events of one instance, so that a listener that reconnects misses none.
type events struct {
	mu     sync.Mutex
	next   uint64
	kept   []pando.SelfEvent
	subs   map[chan struct{}]bool
	closed bool
	budget budget // as last sent
}

// newEvents starts an agent's event ids at its start time in microseconds. An agent sends fewer
// events than microseconds pass, so the next agent's ids are greater. A listener that resumes with
// the next agent misses nothing.
func newEvents(now time.Time) *events {
	return &events{next: uint64(max(1, now.UnixMicro())), subs: map[chan struct{}]bool{}}
}

func (e *events) send(at time.Time, kind pando.SelfEventKind, data any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add(at, kind, data)
}

// sendBudget sends a budget unless it was the last one sent.
func (e *events) sendBudget(at time.Time, b budget) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !reflect.DeepEqual(b, e.budget) {
		e.budget = b
		e.add(at, pando.EventBudget, b)
	}
}

// add appends an event. The caller holds the lock.
func (e *events) add(at time.Time, kind pando.SelfEventKind, data any) {
	if last := len(e.kept) - 1; last >= 0 && kind == pando.EventPeers && e.kept[last].Kind == kind {
		e.kept = e.kept[:last] // a newer number of peers replaces the one before
	}
	e.kept = append(e.kept, pando.SelfEvent{ID: e.next, Kind: kind, At: at, Data: data})
	e.next++
	if len(e.kept) > eventsKept {
		e.kept = e.kept[len(e.kept)-eventsKept:]
	}
	e.rouse()
}

func (e *events) rouse() {
	for s := range e.subs {
		select {
		case s <- struct{}{}:
		default:
		}
	}
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.rouse()
}

func (e *events) listeners() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.subs)
}

// since returns the kept events after id. It also reports whether more can follow.
func (e *events) since(id uint64) ([]pando.SelfEvent, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n, v := range e.kept {
		if v.ID > id {
			return append([]pando.SelfEvent(nil), e.kept[n:]...), !e.closed
		}
	}
	return nil, !e.closed
}

// stream sends every event after id until ctx ends or the instance is gone. An id of 0 starts with
// the next event. An id beyond the newest starts with the oldest kept event.
func (e *events) stream(ctx context.Context, after uint64) <-chan pando.SelfEvent {
	out := make(chan pando.SelfEvent)
	rouse := make(chan struct{}, 1)
	e.mu.Lock()
	switch {
	case after == 0:
		after = e.next - 1
	case after >= e.next: // an id of the agent before this one: every kept event is newer
		after = 0
	}
	e.subs[rouse] = true
	e.mu.Unlock()
	go func() {
		defer close(out)
		defer func() {
			e.mu.Lock()
			delete(e.subs, rouse)
			e.mu.Unlock()
		}()
		for {
			news, more := e.since(after)
			for _, v := range news {
				select {
				case out <- v:
					after = v.ID
				case <-ctx.Done():
					return
				}
			}
			if !more {
				return
			}
			select {
			case <-rouse:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
