package records

import (
	"context"
	"errors"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/turn"
	"pando.run/pando/world"
)

// Recorder writes the steps of one instance to the registry in the background, in order and in as
// few commits as possible. No step waits for a disk.
type Recorder struct {
	r       *Records
	id      pando.InstanceID
	mu      sync.Mutex
	steps   []step // not yet written, oldest first
	nudge   chan struct{}
	writing turn.Turn
	done    chan struct{}
	once    sync.Once
}

// step is a new phase of an instance with its decision. Both are written in one commit, so a reader
// of the step also finds its evidence.
type step struct {
	pando.Instance
	because *pando.Decision
}

// NewRecorder returns the recorder of an instance. Run writes what it collects.
func (r *Records) NewRecorder(i pando.InstanceID) *Recorder {
	return &Recorder{
		r: r, id: i, nudge: make(chan struct{}, 1), writing: turn.New(), done: make(chan struct{}),
	}
}

// Add queues a new state of the instance, with the decision that caused it or nil. It never waits.
func (c *Recorder) Add(i pando.Instance, because *pando.Decision) {
	c.mu.Lock()
	c.steps = append(c.steps, step{i, because})
	c.mu.Unlock()
	select {
	case c.nudge <- struct{}{}:
	default:
	}
}

// Close ends Run after the last step.
func (c *Recorder) Close() { c.once.Do(func() { close(c.done) }) }

// Run writes steps until ctx ends or the recorder is closed.
func (c *Recorder) Run(ctx context.Context) {
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
			err := c.Flush(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			if wait == recordWaitMin {
				c.r.log.Warn("a step of an instance is not recorded yet; it is tried again",
					"instance", c.id, "error", err)
			}
			if pando.Sleep(ctx, c.r.clock, wait) != nil || c.ended(ctx) {
				return
			}
		}
	}
}

// The wait between two attempts to record a step.
const (
	recordWaitMin = 100 * time.Millisecond
	recordWaitMax = 2 * time.Second
)

// hopeless reports whether a write can never succeed. ErrFenced can pass: this agent joins again
// and gets a new fence.
func hopeless(err error) bool {
	return errors.Is(err, pando.ErrTooLarge) || errors.Is(err, pando.ErrForbidden) ||
		errors.Is(err, pando.ErrInvalid)
}

// collectWait is how long the record of a step waits to be written with the next one. The wait
// leaves the machine to the starting instance. It delays no traffic: control counts an instance
// from its placement, and this host steers to it before the record is written.
var collectWait = map[pando.Phase]time.Duration{
	pando.PhaseStarting:   100 * time.Millisecond,
	pando.PhaseReady:      15 * time.Millisecond,
	pando.PhaseInRotation: 15 * time.Millisecond,
}

// collect waits as long as the newest step may wait. It returns false when the recorder ends.
func (c *Recorder) collect(ctx context.Context) bool {
	for wait := c.wait(); wait > 0; wait = c.wait() {
		timer, stop := c.r.clock.After(wait)
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

// ended reports whether the recorder or its context has ended.
func (c *Recorder) ended(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-c.done:
		return true
	default:
		return false
	}
}

// Wait returns how much longer the newest step may wait, or zero if there is none.
func (c *Recorder) wait() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.steps) == 0 {
		return 0
	}
	last := c.steps[len(c.steps)-1]
	if last.Run != nil {
		return 0 // its caller waits
	}
	// Control may have written Since, by another clock.
	most := collectWait[last.Phase]
	return min(most, most-c.r.clock.Now().Sub(last.Since))
}

// Flush writes all waiting steps. It drops steps that can never be written and logs them. The
// Record of the next step then lacks only their evidence.
func (c *Recorder) Flush(ctx context.Context) error {
	if err := c.writing.Take(ctx); err != nil {
		return err
	}
	defer c.writing.Give()
	for collision := 20 * time.Millisecond; ; collision = min(2*collision, time.Second) {
		c.mu.Lock()
		steps := c.steps
		c.mu.Unlock()
		if len(steps) == 0 {
			return nil
		}
		err := c.write(ctx, steps)
		if errors.Is(err, pando.ErrConflict) {
			if err := c.r.AwaitChange(ctx, c.r.News(), collision); err != nil {
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
			c.r.log.Error("a step of an instance is given up: it cannot be recorded",
				"instance", c.id, "phase", last.Phase, "error", err)
			return err
		}
	}
}

// write makes one commit of a run of steps: the last one as the instance's record, and all of them
// in its intents.
func (c *Recorder) write(ctx context.Context, steps []step) error {
	last := steps[len(steps)-1].Instance
	t, recorded := pando.Txn{}, false
	now := c.r.Record(last.ID).V
	ids := []pando.IntentID{last.Intent, last.Halt, now.Intent, now.Halt}
	if err := c.r.BringIntents(ctx, last.Service, ids...); err != nil {
		return err
	}
	c.r.Read(func(w *world.World) {
		var known world.Versioned[pando.Instance]
		if known, recorded = w.Instances[last.ID]; recorded {
			t = written(c.r.Intents, known, last, steps)
		}
	})
	if !recorded {
		return nil
	}
	for _, s := range steps {
		if s.because != nil {
			t.Put = append(t.Put, *s.because)
		}
	}
	_, err := c.r.Commit(ctx, t)
	if errors.Is(err, pando.ErrConflict) {
		c.r.ForgetIntents(ids...) // one of them may have changed
	}
	return err
}

// written returns the transaction that brings the record of an instance and its intents to the last
// of some steps.
func written(
	asks Intents, known world.Versioned[pando.Instance], last pando.Instance, steps []step,
) pando.Txn {
	ended := last.Phase.Leaving() || last.Phase == pando.PhaseFailed
	move := last.Move
	takenOut := known.V.Phase == pando.PhaseDraining && !ended
	claimed := last.Warm && !known.V.Warm
	switch {
	case claimed && ended:
		// The claim came too late, so its intent ends with the instance.
		last.Warm, last.Intent, last.Role = false, known.V.Intent, known.V.Role
	case takenOut || claimed:
		// Control was faster, but only the agent has the addresses.
		ip4, ip6 := last.IP4, last.IP6
		last = known.V
		last.IP4, last.IP6 = ip4, ip6
	}
	last.Halt, last.Walk = known.V.Halt, known.V.Walk || last.Walk
	last.EndNow = known.V.EndNow || last.EndNow
	// Control alone writes the first two, and this agent alone the third.
	last.Start, last.Bound, last.Move = known.V.Start, known.V.Bound, move
	t := pando.Txn{If: []pando.Condition{known.If()}, Put: []pando.Stored{last}}
	for _, id := range []pando.IntentID{last.Intent, last.Halt} {
		v, ok := asks[id]
		if !ok {
			continue
		}
		if next, changed := follow(v.V, steps); changed {
			t.If = append(t.If, v.If())
			t.Put = append(t.Put, next)
		}
	}
	return t
}

// intentOf maps the phase of an instance to the state of its intents.
var intentOf = map[pando.Phase]pando.IntentState{
	pando.PhaseStarting:   pando.IntentStarting,
	pando.PhaseReady:      pando.IntentReady,
	pando.PhaseInRotation: pando.IntentInRotation,
	pando.PhaseFailed:     pando.IntentFailed,
	pando.PhaseMerged:     pando.IntentMerged,
}

// follow moves an intent along the steps that it can take.
func follow(i pando.Intent, steps []step) (pando.Intent, bool) {
	changed := false
	for _, s := range steps {
		to, ok := intentOf[s.Phase]
		ending := to == pando.IntentMerged || i.State == pando.IntentDraining
		if ok && i.State.May(to) && (i.Verb == pando.VerbHalt) == ending {
			i, changed = i.Become(to, s.Since, s.Reason), true
		}
	}
	return i, changed
}
