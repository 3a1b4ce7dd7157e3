package function

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"pando.run/pando/demo/report"
)

// sample is the state of the units at one moment.
type sample struct {
	at        time.Time
	accepting int // number of running units that take packets
	active    int
	billed    uint64 // packets, by the last function of the chain
}

// timeline records the observations of a run.
type timeline struct {
	mu       sync.Mutex
	born     time.Time // when the demo began
	begin    time.Time // when the replay began
	step     string
	offered  []sent
	arrived  []came
	received time.Time // when the receiver began
	final    came      // the last report of the receiver
	samples  []sample
	units    []unit
	seen     map[string]*life
	order    []string
	events   []report.Decision
	dead     kill
	shown    shown
}

// life is one observed start of a unit.
type life struct {
	name       string
	begin, end time.Time // end zero: the unit still runs
	billed     uint64    // packets, at the last sample
}

// kill is the killed unit, and when another unit replaced it. Zero means not yet.
type kill struct {
	unit     unit
	at, over time.Time
}

func newTimeline() *timeline {
	now := time.Now()
	return &timeline{born: now, begin: now, seen: map[string]*life{}}
}

// say sets the description of the current step.
func (t *timeline) say(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step = step
}

// event records an event with its reason.
func (t *timeline) event(who, what, why, outcome string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.happened(who, what, why, outcome)
}

// happened is event for callers that hold the lock.
func (t *timeline) happened(who, what, why, outcome string) {
	at := fmt.Sprintf("%+.2f s", time.Since(t.begin).Seconds())
	if len(t.offered) == 0 {
		at = "before"
	}
	t.events = append(t.events,
		report.Decision{At: at, Who: who, What: what, Why: why, Outcome: outcome})
}

// sent records a report of the generator.
func (t *timeline) sent(r sent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin = time.Unix(0, int64(r.BeginNanos))
	t.offered = append(t.offered, r)
}

// came records a report of the receiver.
func (t *timeline) came(r came) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Last {
		t.final = r
		return
	}
	if len(t.arrived) == 0 {
		t.received = time.Now().Add(-time.Duration(r.AtMillis) * time.Millisecond)
	}
	t.arrived = append(t.arrived, r)
}

// saw records the statuses of the units.
func (t *timeline) saw(listed []unit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	s := sample{at: now}
	for _, u := range listed {
		if u.Group != nil {
			s.accepting = u.Group.Accepting
		}
	}
	t.units = alone(listed)
	running := map[string]unit{}
	for _, u := range t.units {
		if u.State == "running" {
			running[u.key()] = u
		}
	}
	s.active = len(running)
	for _, key := range slices.Sorted(maps.Keys(t.seen)) {
		if _, runs := running[key]; !runs && t.seen[key].end.IsZero() {
			t.seen[key].end = now
			t.ended(t.seen[key].name, s.active)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(running)) {
		u := running[key]
		if t.seen[key] == nil {
			t.seen[key] = &life{name: u.Name, begin: now}
			t.order = append(t.order, key)
			t.arise(u)
		}
		t.seen[key].billed = u.processed()
	}
	for key, l := range t.seen {
		s.billed += l.billed
		if key == t.dead.unit.key() && !l.end.IsZero() && s.active > 0 && t.dead.over.IsZero() {
			t.dead.over = now
		}
	}
	t.samples = append(t.samples, s)
}

// key distinguishes the starts of a unit.
func (u unit) key() string { return fmt.Sprintf("%s/%d", u.Name, u.Epoch) }

// processed returns the number of packets that the last function processed.
func (u unit) processed() uint64 {
	if len(u.Functions) == 0 {
		return 0
	}
	return u.Functions[len(u.Functions)-1].Packets
}

// arise records that a unit began to serve.
func (t *timeline) arise(u unit) {
	why := "the load asks for it, or will"
	if len(t.order) == 1 {
		why = "pando fn run"
	}
	t.happened(u.Name, "started", why, fmt.Sprintf("process %d", u.PID))
}

// ended records that a unit stopped serving. others is the number of units that still serve.
func (t *timeline) ended(name string, others int) {
	if name != t.dead.unit.Name {
		t.happened(name, "left", "the others carry the load", "its flows' states were handed on")
		return
	}
	t.happened(name, "dead", fmt.Sprintf("seen %s after the kill",
		micros(uint64(time.Since(t.dead.at)))), fmt.Sprintf("units that serve on: %d", others))
}

// kill kills the unit that processed most packets.
func (t *timeline) kill(ctx context.Context, s *stage) error {
	units, err := ask[[]unit](ctx, s, "ls")
	if err != nil {
		return err
	}
	units = slices.DeleteFunc(alone(units), func(u unit) bool { return u.State != "running" })
	if len(units) == 0 {
		return fmt.Errorf("no unit runs: nothing to kill")
	}
	victim := slices.MaxFunc(units,
		func(a, b unit) int { return int(a.processed()) - int(b.processed()) })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step = fmt.Sprintf("kill -9 %d: unit %s, which holds %d flows",
		victim.PID, victim.Name, victim.Flows)
	t.dead = kill{unit: victim, at: time.Now()}
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill unit %s, process %d: %w", victim.Name, victim.PID, err)
	}
	t.happened(victim.Name, "killed", "kill -9 by the demo, at half of the capture",
		fmt.Sprintf("process %d, with %d flows and %d packets processed",
			victim.PID, victim.Flows, victim.processed()))
	return nil
}

// ready waits until a unit reports that it runs.
func (t *timeline) ready(ctx context.Context, s *stage, watcher *process) error {
	first := make([]byte, 1)
	if _, err := watcher.out.Read(first); err != nil {
		return fmt.Errorf("the unit does not start: %w", watcher.wait())
	}
	units, err := ask[[]unit](ctx, s, "ls")
	if err != nil {
		return err
	}
	t.saw(units)
	return nil
}

// shrink waits until unneeded units have left.
func (t *timeline) shrink(ctx context.Context) error {
	return t.until(ctx, "units leave that are not needed", shrinkWait, func() bool {
		_, most, last := t.grown()
		return last < most
	})
}

// grown returns the first, the highest and the last number of units. The caller holds the lock.
func (t *timeline) grown() (first, most, last int) {
	for _, s := range t.samples {
		most = max(most, s.active)
	}
	return t.samples[0].active, most, t.samples[len(t.samples)-1].active
}

// settle waits until all packets in flight have arrived or are lost. It ends after one second
// without a packet.
func (t *timeline) settle(ctx context.Context) error {
	const quiet = 10 // reports, one every 100 ms
	return t.until(ctx, "packets that are under way come to an end", settleWait, func() bool {
		n := len(t.arrived)
		if n < quiet {
			return false
		}
		for _, r := range t.arrived[n-quiet:] {
			if r.Packets > 0 {
				return false
			}
		}
		return true
	})
}
