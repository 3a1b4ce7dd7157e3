package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sim"
)

// watched is a registry that counts its open watches.
type watched struct {
	pando.Registry
	mu   sync.Mutex
	open int
}

func (c *watched) Watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	c.mu.Lock()
	c.open++
	c.mu.Unlock()
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		c.open--
		c.mu.Unlock()
	})
	return c.Registry.Watch(ctx, prefix, after)
}

func (c *watched) watches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// listened is a control over a store that holds n commits, without its loop.
func listened(t *testing.T, n int) (*Control, *watched) {
	t.Helper()
	r := &watched{Registry: sim.NewRegistry(1, 0)}
	c := New(Config{Clock: clock.Clock{}, Registry: r, Log: slog.New(slog.DiscardHandler)})
	write(t, r, n, 10)
	return c, r
}

// write commits n records of so many bytes.
func write(t *testing.T, r pando.Registry, n, bytes int) (last pando.StoreRevision) {
	t.Helper()
	web := pando.Service{ServiceKey: pando.DefaultService("web"), Phase: pando.ServiceServing,
		Reason: strings.Repeat("x", bytes)}
	for range n {
		at, err := r.Commit(t.Context(), pando.Txn{Put: []pando.Stored{web}})
		if err != nil {
			t.Fatal(err)
		}
		last = at
	}
	return last
}

// rest reads a watch until it has brought a revision, or has ended.
func rest(watch <-chan pando.Change, until pando.StoreRevision) (all []pando.Change) {
	for c := range watch {
		if all = append(all, c); c.Revision >= until && !c.More {
			break
		}
	}
	return all
}

// Many listeners that read nothing share one watch of the store and one log in memory. Each is let
// go with a reason that lets it resume, and control is not held up.
func TestListenersThatStopReadingAreLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := listened(t, 0)
		ctx, end := context.WithCancel(t.Context())
		go func() { _ = c.feedFrom(ctx, 0) }()
		var idle []<-chan pando.Change
		for range 200 {
			idle = append(idle, c.Watch(ctx, 0))
		}
		synctest.Wait()
		last := write(t, r, 300, 100_000)
		synctest.Wait()
		if n := r.watches(); n != 1 {
			t.Errorf("%d watches of the store for 200 listeners", n)
		}
		fresh := c.Watch(ctx, last)
		next := write(t, r, 1, 10)
		if got := rest(fresh, next); len(got) != 2 || got[1].Err != nil {
			t.Errorf("a listener beside them gets %+v", got)
		}
		for _, w := range idle {
			all := rest(w, next)
			got := all[len(all)-1]
			if !errors.Is(got.Err, pando.ErrUnavailable) || !strings.Contains(got.Err.Error(), "resume") {
				t.Fatalf("%d changes, the last is %+v", len(all), got)
			}
			before := all[len(all)-2]
			if before.More || before.Revision != got.Revision {
				t.Fatalf("it ends within a commit: %+v before %+v", before, got)
			}
		}
		end()
		synctest.Wait()
	})
}

// A listener that resumes after an old revision, or reads slowly, gets every change once.
func TestAListenerThatResumesGetsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := listened(t, 30)
		ctx, end := context.WithCancel(t.Context())
		last := write(t, r, 30, 100_000) // three pieces
		go func() { _ = c.feedFrom(ctx, last) }()
		synctest.Wait()
		got := map[pando.StoreRevision]int{}
		after := pando.StoreRevision(5)
		final := write(t, r, 2, 10)
		for cuts := 0; after < final; cuts++ {
			if cuts > 3 {
				t.Fatalf("it is at revision %d of %d after %d cuts", after, final, cuts)
			}
			for _, one := range rest(c.Watch(ctx, after), final) {
				if one.Err == nil && one.Kind != pando.KindBookmark {
					got[one.Revision]++
					after = one.Revision
				}
			}
		}
		for at := pando.StoreRevision(6); at <= final; at++ {
			if got[at] != 1 {
				t.Errorf("revision %d came %d times", at, got[at])
			}
		}
		synctest.Wait()
		if n := r.watches(); n != 1 {
			t.Errorf("%d watches are left", n)
		}
		end()
		synctest.Wait()
	})
}

// Only so many listeners read older changes at the same time. One that gets no place is told.
func TestAListenerWithoutAPlaceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := listened(t, 3)
		ctx, end := context.WithCancel(t.Context())
		c.newest.Begin(3)
		for range catchUpTurns.Total {
			if _, err := c.reading.TakeAsOperator(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		all := rest(c.Watch(ctx, 1), 9)
		if last := all[len(all)-1]; !errors.Is(last.Err, pando.ErrUnavailable) ||
			time.Since(began) > catchUpWait {
			t.Errorf("after %s: %s", time.Since(began), fmt.Sprint(all))
		}
		end()
		synctest.Wait()
	})
}

// The listeners of one tenant that read older changes leave places to another tenant and to operators.
func TestATenantLeavesPlacesForOtherListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := listened(t, 3)
		as := func(name pando.Tenant) context.Context {
			return access.WithToken(t.Context(), access.Token{TokenKey: access.TokenKey{Tenant: name, Name: "ci"}})
		}
		place := func(ctx context.Context) error {
			l := listener{streams: c.streams}
			_, err := l.place(ctx)
			return err
		}
		for range catchUpTurns.Each {
			if err := place(as("acme")); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := place(as("acme")); !errors.Is(err, pando.ErrUnavailable) || time.Since(began) != catchUpWait {
			t.Errorf("one more of acme after %s: %v", time.Since(began), err)
		}
		began = time.Now()
		for _, ctx := range []context.Context{as("bank"), t.Context()} {
			if err := place(ctx); err != nil || time.Since(began) > 0 {
				t.Errorf("another one after %s: %v", time.Since(began), err)
			}
		}
	})
}
