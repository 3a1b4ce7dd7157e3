package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/world"
)

// commits returns a watch of n commits with two records each.
func commits(t *testing.T, ctx context.Context, n int) <-chan pando.Batch {
	t.Helper()
	web := pando.Service{ServiceKey: pando.DefaultService("web"), Phase: pando.ServiceServing}
	value, err := world.Encode(web)
	if err != nil {
		t.Fatal(err)
	}
	in := make(chan pando.Batch)
	go func() {
		defer close(in)
		for i := range n {
			r := pando.Record{Key: web.Key(), Value: value, Modified: pando.StoreRevision(i + 2)}
			select {
			case in <- pando.Batch{Revision: r.Modified, Changes: []pando.Record{r, r}}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return in
}

// A listener that stops to read costs a bounded number of changes, and learns the reason at last.
func TestAListenerThatStopsReadingIsLetGo(t *testing.T) {
	watch, end := context.WithCancel(t.Context())
	in := commits(t, watch, 10*changesWaiting)
	out, done := make(chan pando.Change), make(chan struct{})
	go func() {
		defer close(done)
		defer close(out)
		passOn(t.Context(), out, pando.Change{Kind: pando.KindBookmark, Revision: 1}, in, end)
	}()
	<-watch.Done() // nothing was read until now
	var all []pando.Change
	for c := range out {
		all = append(all, c)
	}
	<-done
	last := all[len(all)-1]
	if len(all) > changesWaiting+4 || !errors.Is(last.Err, pando.ErrUnavailable) ||
		!strings.Contains(last.Err.Error(), "resume") {
		t.Errorf("%d changes, the last is %+v", len(all), last)
	}
	if before := all[len(all)-2]; before.More || before.Revision != last.Revision {
		t.Errorf("the changes end within a commit: %+v", before)
	}
}

// A commit follows when the listener has read the one before, so it is never behind.
func TestAListenerThatReadsGetsEverything(t *testing.T) {
	in, out := make(chan pando.Batch), make(chan pando.Change)
	go func() {
		defer close(out)
		passOn(t.Context(), out, pando.Change{Kind: pando.KindBookmark, Revision: 1}, in,
			func() { t.Error("it is let go") })
	}()
	n := 0
	for b := range commits(t, t.Context(), 3*changesWaiting) {
		in <- b
		for range len(b.Changes) {
			if c := <-out; c.Err != nil {
				t.Fatal(c.Err)
			}
			n++
		}
	}
	close(in)
	for range out {
		n++
	}
	if n != 1+2*3*changesWaiting {
		t.Errorf("%d changes", n)
	}
}
