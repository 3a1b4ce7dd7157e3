package pando

import (
	"context"
	"time"
)

// WaitToldAfter is how long work waits for another machine before it reports that. A caller knows the
// reason of a wait within a second.
const WaitToldAfter = 700 * time.Millisecond

type tellKey struct{}

// TellWaits returns a context whose work reports what it waits for, such as "registry r.example",
// and "" once it no longer waits. tell may be called from any goroutine.
func TellWaits(ctx context.Context, tell func(what string)) context.Context {
	return context.WithValue(ctx, tellKey{}, tell)
}

// Waiting reports what the caller waits for, after WaitToldAfter. The caller calls done at the end of
// the wait. No report follows it.
func Waiting(ctx context.Context, c Clock, what string) (done func()) {
	tell, _ := ctx.Value(tellKey{}).(func(string))
	if tell == nil {
		return func() {}
	}
	late, stop := c.After(WaitToldAfter)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-end:
			return
		case <-late:
		}
		tell(what)
		<-end
		tell("")
	}()
	return func() {
		stop()
		close(end)
		<-ended
	}
}
