// Package events keeps the recent events of one instance for its listeners.
//
// It never waits for a listener.
package events

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
)

// eventsKept is the number of events of an instance that a listener can request again.
const eventsKept = 256

// Budget is the number of instances that a service may have, as sent to its instances.
type Budget struct {
	Min int        `json:"min"`
	Max int        `json:"max"`
	Pin *pando.Pin `json:"pin"`
}

// Feed holds the recent events of one instance, so that a listener that reconnects misses none.
type Feed struct {
	mu     sync.Mutex
	next   uint64
	kept   []pando.SelfEvent
	latest map[pando.SelfEventKind]pando.SelfEvent // of each kind that carries a state
	subs   map[chan struct{}]bool
	closed bool
	budget Budget // as last sent
}

// carriesState reports whether events of a kind tell what is so now. A listener that connects later
// needs the newest one, because nothing else tells it.
func carriesState(k pando.SelfEventKind) bool {
	return k != pando.EventSnapshot // which only announces a moment
}

// New returns a feed without events. Its ids start at the start time of the agent in microseconds.
// An agent sends fewer events than microseconds pass, so the next agent's ids are greater. A
// listener that resumes with the next agent misses nothing.
func New(now time.Time) *Feed {
	return &Feed{
		next: uint64(max(1, now.UnixMicro())), subs: map[chan struct{}]bool{},
		latest: map[pando.SelfEventKind]pando.SelfEvent{},
	}
}

// Send appends an event. It never waits.
func (e *Feed) Send(at time.Time, kind pando.SelfEventKind, data any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add(at, kind, data)
}

// SendBudget sends a budget unless it was the last one sent.
func (e *Feed) SendBudget(at time.Time, b Budget) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !reflect.DeepEqual(b, e.budget) {
		e.budget = b
		e.add(at, pando.EventBudget, b)
	}
}

// add appends an event.
func (e *Feed) add(at time.Time, kind pando.SelfEventKind, data any) {
	if last := len(e.kept) - 1; last >= 0 && replaces(kind) && e.kept[last].Kind == kind {
		e.kept = e.kept[:last]
	}
	event := pando.SelfEvent{ID: e.next, Kind: kind, At: at, Data: data}
	e.kept = append(e.kept, event)
	if carriesState(kind) {
		e.latest[kind] = event
	}
	e.next++
	if len(e.kept) > eventsKept {
		e.kept = e.kept[len(e.kept)-eventsKept:]
	}
	e.rouse()
}

// replaces reports whether an event replaces the one of its kind directly before it: a newer number
// of peers, or the same news again.
func replaces(k pando.SelfEventKind) bool {
	return k == pando.EventPeers || k == pando.EventDrained
}

func (e *Feed) rouse() {
	for s := range e.subs {
		select {
		case s <- struct{}{}:
		default:
		}
	}
}

// Close ends the streams of all listeners after their last event.
func (e *Feed) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.rouse()
}

// Listeners returns the number of open streams.
func (e *Feed) Listeners() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.subs)
}

// Since returns the kept events after id, and the states after id whose events are kept no more. It
// also reports whether more can follow.
func (e *Feed) Since(id uint64) ([]pando.SelfEvent, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := slices.IndexFunc(e.kept, func(v pando.SelfEvent) bool { return v.ID > id })
	if from < 0 {
		return nil, !e.closed
	}
	news := slices.Clone(e.kept[from:])
	for _, v := range e.present() {
		if id < v.ID && v.ID < e.kept[0].ID {
			news = append(news, v)
		}
	}
	slices.SortFunc(news, byID)
	return news, !e.closed
}

// present returns the newest event of each kind that carries a state.
func (e *Feed) present() []pando.SelfEvent {
	return slices.SortedFunc(maps.Values(e.latest), byID)
}

func byID(a, b pando.SelfEvent) int { return cmp.Compare(a.ID, b.ID) }

// Stream sends every event after id until ctx ends or the instance is gone. An id of 0 starts with
// the present state: the newest event of each kind that carries one. An id beyond the newest starts
// with the oldest kept event.
func (e *Feed) Stream(ctx context.Context, after uint64) <-chan pando.SelfEvent {
	out := make(chan pando.SelfEvent)
	rouse := make(chan struct{}, 1)
	var first []pando.SelfEvent
	e.mu.Lock()
	switch {
	case after == 0:
		first, after = e.present(), e.next-1
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
		for news, more := first, true; ; {
			for _, v := range news {
				select {
				case out <- v:
				case <-ctx.Done():
					return
				}
			}
			if news, more = e.Since(after); len(news) > 0 {
				after = news[len(news)-1].ID
				continue
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
