package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"pando.run/pando"
)

// recorder writes the steps of one instance to the registry behind its back, in order and in as few commits as they allow,
// so that no step waits for a disk.
type recorder struct {
	r       *runner
	mu      sync.Mutex
	steps   []step // not yet written, oldest first
	nudge   chan struct{}
	writing turn
	done    chan struct{}
	once    sync.Once
}

// step is what an instance has become, with what was decided about it, which is written in the same commit: whoever sees
// the step sees its evidence.
type step struct {
	pando.Instance
	because *pando.Decision
}

func newRecorder(r *runner) *recorder {
	return &recorder{r: r, nudge: make(chan struct{}, 1), writing: newTurn(), done: make(chan struct{})}
}

func (c *recorder) add(i pando.Instance, because *pando.Decision) {
	c.mu.Lock()
	c.steps = append(c.steps, step{i, because})
	c.mu.Unlock()
	select {
	case c.nudge <- struct{}{}:
	default:
	}
}

func (c *recorder) close() { c.once.Do(func() { close(c.done) }) }

func (c *recorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
		case <-c.done:
		case <-c.nudge:
		}
		if c.ended(ctx) || !c.collect(ctx) {
			return
		}
		for wait := recordWaitMin; ; wait = min(2*wait, recordWaitMax) {
			err := c.flush(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			if wait == recordWaitMin {
				c.r.a.Log.Warn("a step of an instance is not recorded yet; it is tried again", "instance", c.r.id, "error", err)
			}
			if pando.Sleep(ctx, c.r.a.Clock, wait) != nil || c.ended(ctx) {
				return
			}
		}
	}
}

// Between two attempts to record a step.
const (
	recordWaitMin = 100 * time.Millisecond
	recordWaitMax = 2 * time.Second
)

// hopeless says whether a write can never be made. ErrFenced is not among them: this agent joins again and has a new fence.
func hopeless(err error) bool {
	return errors.Is(err, pando.ErrTooLarge) || errors.Is(err, pando.ErrForbidden) || errors.Is(err, pando.ErrInvalid)
}

// collectWait is how long the record of a step waits for the next one, to be written with it, and leaves the machine to the
// instance that starts: control counts it from its placement on, and this host steers to it before any record says so.
var collectWait = map[pando.Phase]time.Duration{
	pando.PhaseStarting:   100 * time.Millisecond,
	pando.PhaseReady:      15 * time.Millisecond,
	pando.PhaseInRotation: 15 * time.Millisecond,
}

// collect waits as long as the newest step may; false: the recorder ends.
func (c *recorder) collect(ctx context.Context) bool {
	for wait := c.wait(); wait > 0; wait = c.wait() {
		timer, stop := c.r.a.Clock.After(wait)
		select {
		case <-ctx.Done():
		case <-c.done:
		case <-c.nudge:
		case <-timer:
		}
		if stop(); c.ended(ctx) {
			return false
		}
	}
	return true
}

// ended says whether nothing is left to be recorded.
func (c *recorder) ended(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-c.done:
		return true
	default:
		return false
	}
}

// wait is how much longer the newest step may wait; nothing, if there is none.
func (c *recorder) wait() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.steps) == 0 {
		return 0
	}
	last := c.steps[len(c.steps)-1]
	return collectWait[last.Phase] - c.r.a.Clock.Now().Sub(last.Since)
}

// flush writes everything that waits. What can never be written is given up, with a line in the log: the record of the next
// step says all that this one would have said but for its evidence.
func (c *recorder) flush(ctx context.Context) error {
	if err := c.writing.take(ctx); err != nil {
		return err
	}
	defer c.writing.give()
	for collision := 20 * time.Millisecond; ; collision = min(2*collision, time.Second) {
		c.mu.Lock()
		steps := c.steps
		c.mu.Unlock()
		if len(steps) == 0 {
			return nil
		}
		err := c.write(ctx, steps)
		if errors.Is(err, pando.ErrConflict) {
			c.r.a.mu.Lock()
			changed := c.r.a.changed
			c.r.a.mu.Unlock()
			if err := c.r.a.news(ctx, changed, collision); err != nil {
				return err
			}
			continue
		}
		if err != nil && !hopeless(err) {
			return err
		}
		c.mu.Lock()
		c.steps = c.steps[len(steps):]
		c.mu.Unlock()
		if err != nil {
			last := steps[len(steps)-1]
			c.r.a.Log.Error("a step of an instance is given up: it cannot be recorded", "instance", c.r.id, "phase", last.Phase, "error", err)
			return err
		}
	}
}

// write makes one commit of a run of steps: the last of them as the instance's record, all of them in its intents.
func (c *recorder) write(ctx context.Context, steps []step) error {
	a := c.r.a
	last := steps[len(steps)-1].Instance
	a.mu.Lock()
	known, ok := a.world.Instances[last.ID]
	if !ok {
		a.mu.Unlock()
		return nil // its record is gone: nothing to say
	}
	takenOut := known.V.Phase == pando.PhaseDraining && !last.Phase.Leaving() && last.Phase != pando.PhaseFailed
	if claimed := last.Warm && !known.V.Warm; takenOut || claimed {
		// Control was faster; its addresses are news all the same.
		ip4, ip6 := last.IP4, last.IP6
		last = known.V
		last.IP4, last.IP6 = ip4, ip6
	}
	last.Halt, last.Walk = known.V.Halt, known.V.Walk || last.Walk
	t := pando.Txn{If: []pando.Condition{known.If()}, Put: []pando.Stored{last}}
	for _, id := range []pando.IntentID{last.Intent, last.Halt} {
		v, ok := a.world.Intents[id]
		if !ok {
			continue
		}
		if next, changed := follow(v.V, steps); changed {
			t.If = append(t.If, v.If())
			t.Put = append(t.Put, next)
		}
	}
	a.mu.Unlock()
	for _, s := range steps {
		if s.because != nil {
			t.Put = append(t.Put, *s.because)
		}
	}
	_, err := a.commit(ctx, t)
	return err
}

// intentOf says what a step of an instance means for the intents behind it.
var intentOf = map[pando.Phase]pando.IntentState{
	pando.PhaseStarting:   pando.IntentStarting,
	pando.PhaseReady:      pando.IntentReady,
	pando.PhaseInRotation: pando.IntentInRotation,
	pando.PhaseFailed:     pando.IntentFailed,
	pando.PhaseMerged:     pando.IntentMerged,
}

// follow takes an intent along the steps that it can take.
func follow(i pando.Intent, steps []step) (pando.Intent, bool) {
	changed := false
	for _, s := range steps {
		to, ok := intentOf[s.Phase]
		if ok && i.State.May(to) && (i.Verb == pando.VerbHalt) == (to == pando.IntentMerged || i.State == pando.IntentDraining) {
			i, changed = i.Become(to, s.Since, s.Reason), true
		}
	}
	return i, changed
}
