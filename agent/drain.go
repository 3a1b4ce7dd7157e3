package agent

import "time"

// The flows of a draining instance are counted when the steering has seen them end, and in any case
// after recountMax. Some ends cannot be seen: of a UDP flow, or of a client that is gone.
const (
	drainLookMin = 10 * time.Millisecond
	drainLookMax = time.Second
	recountMax   = 10 * time.Second
)

// counting decides when the flows of one draining instance are looked at and counted. A count is due
// once as many ends were seen as it had flows: before that, not all of them can have ended visibly.
// Further counts get rarer with the time since then. A connection that stays for a day costs one
// count in ten seconds.
type counting struct {
	allowance           // of prompt counts
	asked     bool      // a count is on its way
	ends      uint64    // when changed was set
	changed   time.Time // when all flows may have ended, or the first look
	counted   time.Time // the last count
	proven    bool      // the last count succeeded, and began after the last new flow
	flows     int       // of the last count
	err       error     // of the last count
}

// due returns the time until the next count. ends is the steering's count of ended flows. A prompt
// count may find the end of the drain.
func (c *counting) due(now time.Time, ends uint64) (wait time.Duration, prompt bool) {
	if c.changed.IsZero() {
		c.ends, c.changed = ends, now
	}
	if ends-c.ends >= uint64(max(1, c.flows)) {
		c.ends, c.changed = ends, now
	}
	if c.counted.IsZero() {
		return 0, true
	}
	every := min(max(now.Sub(c.changed)/4, drainLookMin), recountMax)
	switch {
	case c.err != nil:
		return max(0, c.counted.Add(retryWait).Sub(now)), true
	case c.changed.After(c.counted):
		every = 0
	case every == recountMax:
		return max(0, c.counted.Add(every).Sub(now)), false
	}
	return max(0, c.counted.Add(every).Sub(now), c.allowance.wait(now)), true
}

// note keeps the result of a count and its cost.
func (c *counting) note(now time.Time, flows int, err error, cost time.Duration) {
	c.asked, c.counted, c.flows, c.err = false, now, flows, err
	c.spend(now, cost)
}

// again makes a count due: new flows came until now.
func (c *counting) again() { c.counted, c.proven = time.Time{}, false }

// look returns the time until the next look, of a drain that began some time ago.
func (c *counting) look(now time.Time, spent time.Duration) time.Duration {
	return min(max(min(spent/50, now.Sub(c.changed)/4), drainLookMin), drainLookMax)
}

// Prompt counts of one instance may take a hundredth of a processor, after the first half second.
// One count in recountMax is always allowed, however long it took.
const (
	countShare = 100
	countBurst = 500 * time.Millisecond
	countDebt  = countBurst + recountMax/countShare
)

// allowance limits the processor time of the prompt counts of one instance.
type allowance struct {
	spent time.Duration // not yet paid back
	at    time.Time
}

// wait returns the time until the next count may begin.
func (b *allowance) wait(now time.Time) time.Duration {
	b.payBack(now)
	return max(0, b.spent-countBurst) * countShare
}

// spend adds the time of a count.
func (b *allowance) spend(now time.Time, took time.Duration) {
	b.payBack(now)
	b.spent = min(b.spent+took, countDebt)
}

func (b *allowance) payBack(now time.Time) {
	if passed := now.Sub(b.at); !b.at.IsZero() && passed > 0 {
		b.spent = max(0, b.spent-passed/countShare)
	}
	b.at = now
}
