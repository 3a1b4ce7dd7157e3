package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"pando.run/pando"
)

// heartbeat is how often a silent stream of events sends a sign of life.
const heartbeat = 15 * time.Second

// watch streams changes. An event id stands for a whole commit, so the commit's last change carries
// it.
func (h operators) watch(ctx context.Context, in *struct {
	After   pando.StoreRevision `query:"after" minimum:"0" doc:"a store revision (0 = from now on)"`
	LastID  string              `header:"Last-Event-ID" doc:"the last event received; wins over after"`
	Service pando.ServiceName   `query:"service" doc:"changes of one service only"`
	Tenant  pando.Tenant        `query:"tenant" default:"default" doc:"owner of the service"`
}) (func(*sender), error) {
	after, err := eventID(in.LastID)
	if err != nil {
		return nil, err
	}
	if after == 0 {
		after = uint64(in.After)
	}
	of, err := optionalKey(in.Tenant, in.Service)
	if err != nil {
		return nil, err
	}
	return func(to *sender) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events := h.operators.Watch(ctx, pando.StoreRevision(after))
		pass(to, events, func(c pando.Change) []byte { return change(c, of) })
	}, nil
}

// change encodes one change as an event of its kind. A change outside the filter only sends its id.
func change(c pando.Change, of pando.ServiceKey) (b []byte) {
	if c.Err != nil {
		return event(nil, "problem", problemOf(c.Err, nil))
	}
	if !c.More {
		b = fmt.Appendf(b, "id: %d\n", c.Revision)
	}
	if s, _ := c.Key.Service(); c.Kind != pando.KindBookmark && of.Name != "" && s != of {
		if b == nil {
			return nil
		}
		return append(b, '\n')
	}
	return event(b, string(c.Kind), c)
}

// event appends the rest of a server-sent event to b.
func event(b []byte, kind string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		text, _ = json.Marshal(problemOf(err, nil))
		kind = "problem"
	}
	return fmt.Appendf(b, "event: %s\ndata: %s\n\n", kind, text)
}

// eventID parses the header Last-Event-ID. An absent header is 0.
func eventID(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%w: Last-Event-ID %q is not the id of an event", pando.ErrInvalid, text)
	}
	return n, nil
}

// pass sends events until the channel closes or the other side disconnects. It sends a sign of life
// on a silent stream.
func pass[T any](to *sender, events <-chan T, text func(T) []byte) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		b := []byte(": alive\n\n")
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			b = text(e)
		case <-beat.C:
		}
		if !to.send(b) {
			return
		}
	}
}
