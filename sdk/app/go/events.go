package pando

import (
	"bufio"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strings"
	"time"
)

// Kinds of events.
const (
	Drained = "drained" // the last flow has ended: push the state, then die
	Halted  = "halted"  // halted, but not by its own Halt: finish, push, die
	Peers   = "peers"   // the set of instances that take flows has changed
	Budget  = "budget"  // min, max or an operator's pin has changed
	Pushed  = "state"   // main has changed: pull to see it
)

// Event is a change that concerns this instance.
type Event struct {
	ID   uint64          `json:"id"`
	Kind string          `json:"kind"`
	At   time.Time       `json:"at"`
	Data json.RawMessage `json:"data"`
}

// reconnect is the pause before Events tries again while the agent is away.
const reconnect = 100 * time.Millisecond

// silenceMax is the time after which a stream without any line, not even a keep-alive, is dead: its
// agent is stopped. Tests shorten it.
var silenceMax = 45 * time.Second

// Events yields the present state, as the newest event of each kind that tells one, and then each
// new event, until ctx ends or the caller stops. While the agent restarts, or is silent, Events waits
// and then continues after the last event. Drained comes again until the instance dies.
func (s *Self) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		last := ""
		for ctx.Err() == nil {
			if !s.stream(ctx, &last, yield) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(reconnect):
			}
		}
	}
}

// stream yields the events of one connection. It returns false if the caller stopped.
func (s *Self) stream(ctx context.Context, last *string, yield func(Event) bool) bool {
	header := http.Header{}
	if *last != "" {
		header.Set("Last-Event-ID", *last)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dead := time.AfterFunc(silenceMax, cancel)
	defer dead.Stop()
	body, err := s.send(ctx, "GET", "events", nil, header)
	if err != nil {
		return true
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		dead.Reset(silenceMax)
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			*last = id
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e Event
		if json.Unmarshal([]byte(data), &e) == nil && !yield(e) {
			return false
		}
	}
	return true
}
