package announce

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando/driver/sim"
	"pando.run/pando/edge"
)

// pauser is a clock that can be set forward, as after a pause of the process.
type pauser struct {
	sim.Clock
	mu    sync.Mutex
	ahead time.Duration
	slept time.Duration
}

// Suspended implements pando.SuspendClock.
func (p *pauser) Suspended() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slept
}

func (p *pauser) Now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Add(p.ahead)
}

// A host that was paused does not answer by its old view, even before its first step.
func TestAPausedHostTakesItsVIPsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b")
		o.settle(time.Second)
		a, b := o.holders["a"], o.holders["b"]
		b.clock.mu.Lock()
		b.clock.ahead = time.Hour
		b.clock.mu.Unlock()
		a.finds("b") // meanwhile
		for n := range edge.VIPShares {
			if b.answers(vipOf(n)) {
				t.Fatal("it answers with a view of an hour ago")
			}
		}
		o.settle(time.Second)
		o.watch(time.Second)
		if held(b) != 0 || held(a) != edge.VIPShares {
			t.Errorf("a holds %d shares, b %d", held(a), held(b))
		}
		if _, why := b.Held(); !strings.HasPrefix(why, "this agent paused for 1h0m0") {
			t.Errorf("the reason is %q", why)
		}
		a.finds()
		o.settle(time.Second)
		o.watch(time.Second)
		if held(b) == 0 {
			t.Error("b did not come back")
		}
	})
}

// A host that grants shares by a new view does not take them again by the view before.
func TestAStepTakesNothingThatItGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b")
		o.settle(time.Second)
		a := o.holders["a"]
		a.finds("b")
		a.alone()
		var refused edge.Shares
		a.mu.Lock()
		a.viewed = func() { // it read that b is dead
			a.finds()
			refused = a.Grant(edge.VIPTake{Host: "b", Segment: a.view.Segment, Shares: all()})
		}
		a.mu.Unlock()
		a.step(t.Context())
		if got, _ := a.Held(); got != refused || refused.Len() == edge.VIPShares {
			t.Errorf("it holds %d shares, and refused %d of %d to b", got.Len(), refused.Len(),
				edge.VIPShares)
		}
	})
}

// A take that a pause interrupts gives nothing, also if the host held nothing before it.
func TestATakeEndsWithAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b")
		o.settle(time.Second)
		a, b := o.holders["a"], o.holders["b"]
		b.alone()
		b.Grant(edge.VIPTake{Host: "a", Segment: b.view.Segment, Shares: all(), Gone: true, At: 9})
		a.mu.Lock()
		a.asked = func() {
			b.clock.mu.Lock()
			b.clock.ahead = time.Hour
			b.clock.mu.Unlock()
			b.confirm()
		}
		a.mu.Unlock()
		b.step(t.Context())
		if n := held(b); n != 0 {
			t.Errorf("it holds %d shares by a view of an hour ago", n)
		}
	})
}

// alone ends Run, so that the test makes the steps.
func (r *resident) alone() {
	synctest.Wait()
	r.end()
	synctest.Wait()
}

func all() (s edge.Shares) {
	for n := range edge.VIPShares {
		s.Add(n)
	}
	return s
}
