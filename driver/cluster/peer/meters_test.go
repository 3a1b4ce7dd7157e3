package peer

import (
	"context"
	"errors"
	"testing"
	"time"

	"pando.run/pando"
)

func TestMetersStream(t *testing.T) {
	web := pando.DefaultService("web")
	h := &host{counters: []pando.EndpointCounters{
		{Service: web, Instance: "web-1"}, {Service: web, Instance: "web-2"},
	}}
	to, c := serve(t, h, "unix")
	ctx, end := context.WithTimeout(t.Context(), patience)
	defer end()
	from, err := c.Meters(ctx, to)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []pando.InstanceID{"web-1", "web-2"} {
		v, ok := <-from
		if !ok || v.Host != "h1" || v.Link != 0.5 || len(v.All) != 1 ||
			v.All[0].Instance != want || v.All[0].Service != web || v.All[0].CPU != 0.25 {
			t.Fatalf("got %+v, %v", v, ok)
		}
	}
	end()
	select {
	case v, ok := <-from:
		if ok {
			t.Errorf("after the end: %+v", v)
		}
	case <-time.After(patience):
		t.Error("the stream does not end with its context")
	}
}

// A host without room for a listener refuses at once.
func TestMetersThatAreRefused(t *testing.T) {
	to, c := serve(t, &host{err: pando.ErrTooLarge}, "unix")
	if _, err := c.Meters(t.Context(), to); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("refused with %v", err)
	}
}
