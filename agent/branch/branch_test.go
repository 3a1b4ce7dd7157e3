package branch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

var web = pando.DefaultService("web")

// ledger is a registry with one main. It refuses writes on a stale head, and those that a test
// makes collide.
type ledger struct {
	mu       sync.Mutex
	main     world.Versioned[pando.StateHead]
	collides int // of the next commits
	alive    map[pando.InstanceID]bool
	known    bool
	news     chan struct{}
}

func (l *ledger) Main(pando.ServiceKey) world.Versioned[pando.StateHead] {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.main
}

func (l *ledger) Newest(context.Context, pando.ServiceKey) (pando.StateHead, error) {
	return l.main.V, nil
}

func (l *ledger) Types(pando.ServiceKey, int) map[string]pando.StateType {
	return map[string]pando.StateType{"hits": pando.StateCounter}
}

func (l *ledger) Target(pando.ServiceKey) (int, bool) { return 1, l.known }
func (l *ledger) Alive(i pando.InstanceID) bool       { return l.alive[i] }
func (l *ledger) News() <-chan struct{}               { return l.news }
func (l *ledger) Copies(pando.ServiceKey) int         { return 1 }
func (l *ledger) Keeper(pando.ServiceKey) (none world.Versioned[pando.Keeper]) {
	return none
}
func (l *ledger) Keepers() []world.Versioned[pando.Keeper]     { return nil }
func (l *ledger) Reach(pando.HostName) (h pando.Host, ok bool) { return h, false }
func (l *ledger) Seated(pando.ServiceKey, pando.HostName) bool { return false }
func (l *ledger) Seat(pando.ServiceKey, pando.InstanceID) (h pando.HostName, ok bool) {
	return h, false
}
func (l *ledger) set(main pando.StateHead) { l.main.V = main }
func (l *ledger) Heads() (h map[pando.ServiceKey]pando.ObjectID, merges int64, ok bool) {
	m := l.Main(web)
	return map[pando.ServiceKey]pando.ObjectID{web: m.V.Commit}, m.V.Merges, true
}

func (l *ledger) Commit(_ context.Context, t pando.Txn) (pando.StoreRevision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.collides > 0 {
		l.collides--
		return 0, pando.ErrConflict
	}
	if t.If[0].Modified != l.main.Modified {
		return 0, pando.ErrConflict
	}
	l.main.V = t.Put[0].(pando.StateHead)
	l.main.Modified++
	return l.main.Modified, nil
}

// yard is a host with branches, in virtual time.
type yard struct {
	*testing.T
	*Branches
	ctx     context.Context
	ledger  *ledger
	objects *sim.Objects
}

func inYard(t *testing.T, test func(y *yard)) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{alive: map[pando.InstanceID]bool{}, known: true, news: make(chan struct{})}
		o := sim.NewObjects()
		test(&yard{T: t, ctx: t.Context(), ledger: l, objects: o, Branches: New(Config{
			Host: "h1", Records: l, Objects: o, Clock: sim.Clock{},
			Log: slog.New(slog.DiscardHandler),
		})})
	})
}

func (y *yard) ok(err error) {
	y.Helper()
	if err != nil {
		y.Fatal(err)
	}
}

// hit opens the branch of an instance and commits one hit to it.
func (y *yard) hit(i pando.InstanceID) {
	y.Helper()
	b, err := y.Reopen(y.ctx, web, i, 1)
	y.ok(err)
	y.ok(b.Patch("hits", []byte("1")))
	_, err = b.Commit(y.ctx, "a hit", time.Now())
	y.ok(err)
}

// hits returns the counter in main.
func (y *yard) hits() string {
	types := map[string]pando.StateType{"hits": pando.StateCounter}
	v, err := state.Open(y.objects, web, types).Read(y.ledger.main.V.Commit, "hits")
	if err != nil {
		return err.Error()
	}
	return string(v.Bytes)
}

// Twenty instances push at once, and writes collide. Each hit is in main once.
func TestPushesAtOnceAreEachMergedOnce(t *testing.T) {
	inYard(t, func(y *yard) {
		var pushes sync.WaitGroup
		for n := range 20 {
			i := pando.InstanceID(fmt.Sprint("web-", n))
			y.hit(i)
			pushes.Go(func() {
				for range 3 { // the second and the third push nothing
					if _, err := y.Push(y.ctx, web, i); err != nil {
						y.Errorf("push of %s: %v", i, err)
					}
				}
			})
		}
		y.ledger.mu.Lock()
		y.ledger.collides = 7
		y.ledger.mu.Unlock()
		pushes.Wait()
		if got := y.hits(); got != "20" {
			y.Errorf("main has %s hits, want 20", got)
		}
		if n := len(y.merges); n > 0 {
			y.Errorf("%d turns are kept after the last merge", n)
		}
	})
}

func TestABranchIsAwaitedWhileItIsBorn(t *testing.T) {
	inYard(t, func(y *yard) {
		bear := y.Create(web, "web-1", 1)
		got := make(chan error, 1)
		go func() {
			_, err := y.Of(y.ctx, "web-1")
			got <- err
		}()
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatalf("the wait for an unborn branch ended with %v", err)
		default:
		}
		bear(y.ctx)
		y.ok(<-got)
		if _, err := y.Of(y.ctx, "web-2"); !errors.Is(err, ErrNoState) {
			t.Errorf("an instance without a branch: %v", err)
		}
		y.Forget("web-1")
		if _, err := y.Of(y.ctx, "web-1"); !errors.Is(err, ErrNoState) {
			t.Errorf("a forgotten branch: %v", err)
		}
	})
}

// A branch is discarded after main has its commits. A purged service has no main.
func TestADroppedBranchIsMergedFirst(t *testing.T) {
	for _, known := range []bool{true, false} {
		inYard(t, func(y *yard) {
			y.ledger.known = known
			y.ledger.alive["web-1"] = true
			y.hit("web-1")
			y.hit("web-2")
			y.DropStrangers(y.ctx)
			left, err := state.Branches(y.objects, web)
			if y.ok(err); len(left) != 1 || left["web-1"].IsZero() {
				t.Errorf("the branches %v are left, want the one of web-1", left)
			}
			if merged := y.ledger.main.Modified > 0; merged != known {
				t.Errorf("the service is known: %v; main has moved: %v", known, merged)
			}
		})
	}
}

// badDisk fails the next reads of refs.
type badDisk struct {
	pando.Objects
	failures atomic.Int64
}

func (d *badDisk) Ref(name string) (pando.ObjectID, error) {
	if d.failures.Add(-1) >= 0 {
		return pando.ObjectID{}, errors.New("input/output error")
	}
	return d.Objects.Ref(name)
}

// The branches of former instances go as soon as the disk lets them, and calls do not pile up.
func TestStrangersAreDroppedOnceTheDiskIsWhole(t *testing.T) {
	inYard(t, func(y *yard) {
		y.hit("web-1")
		y.hit("web-2")
		disk := &badDisk{Objects: y.objects}
		disk.failures.Store(5)
		y.config.Objects = disk
		ended := make(chan struct{})
		go func() { y.DropStrangers(y.ctx); close(ended) }()
		synctest.Wait()
		y.DropStrangers(y.ctx) // returns at once
		select {
		case <-ended:
			t.Error("it has given up")
		default:
		}
		<-ended
		left, err := state.Branches(y.objects, web)
		if y.ok(err); len(left) > 0 || y.hits() != "2" {
			t.Errorf("the branches %v are left, main has %s hits", left, y.hits())
		}
	})
}

// The wait for the disk ends with the agent.
func TestDroppingStrangersEndsWithTheAgent(t *testing.T) {
	inYard(t, func(y *yard) {
		y.hit("web-1")
		disk := &badDisk{Objects: y.objects}
		disk.failures.Store(1 << 40)
		y.config.Objects = disk
		ctx, cancel := context.WithTimeout(y.ctx, time.Hour)
		defer cancel()
		y.DropStrangers(ctx)
		if ctx.Err() == nil {
			t.Error("it ended before its context")
		}
		if tries := 1<<40 - disk.failures.Load(); tries < 50 || tries > 500 {
			t.Errorf("%d reads in an hour of failures, want one round a minute", tries)
		}
	})
}

// Main has moved to another host. Its objects are not here, and the branch stays.
func TestABranchOfAMovedServiceIsRefused(t *testing.T) {
	inYard(t, func(y *yard) {
		y.hit("web-1")
		y.ledger.set(pando.StateHead{Service: web, Commit: pando.ObjectID{1}, Host: "h2"})
		if _, err := y.Push(y.ctx, web, "web-1"); !errors.Is(err, ErrMoved) {
			t.Errorf("the push ended with %v", err)
		}
		if err := y.Drop(y.ctx, web, "web-1"); !errors.Is(err, ErrMoved) {
			t.Errorf("the drop ended with %v", err)
		}
		left, err := state.Branches(y.objects, web)
		if y.ok(err); len(left) != 1 {
			t.Errorf("the branches %v are left, want one", left)
		}
	})
}
