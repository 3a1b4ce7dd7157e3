package flows

import "time"

// The flows of a draining instance are counted when the steering has seen them end, and in any case
// after recountMax. Some ends cannot be seen: of a UDP flow, or of a client that is gone.
const (
	lookMin    = 10 * time.Millisecond
	LookMax    = time.Second // between two looks at a drain
	recountMax = 10 * time.Second
)

// Schedule decides when the flows of one draining instance are looked at and counted. A count is
// due once as many ends were seen as it had flows: before that, not all of them can have ended
// visibly. Further counts get rarer with the time since then. A connection that stays for a day
// costs one count in ten seconds.
type Schedule struct {
	allowance allowance // of prompt counts
	Asked     bool      // a count is on its way
	Ends      uint64    // when changed was set
	changed   time.Time // when all flows may have ended, or the first look
	counted   time.Time // the last count
	Proven    bool      // the last count succeeded, and began after the last new flow
	Flows     int       // of the last count
	err       error     // of the last count
}

// UntilCount returns the time until the next count. ends is the steering's count of ended flows. A
// prompt count may find the end of the drain.
func (c *Schedule) UntilCount(now time.Time, ends uint64) (wait time.Duration, prompt bool) {
	if c.changed.IsZero() {
		c.Ends, c.changed = ends, now
	}
	if ends-c.Ends >= uint64(max(1, c.Flows)) {
		c.Ends, c.changed = ends, now
	}
	if c.counted.IsZero() {
		return 0, true
	}
	every := min(max(now.Sub(c.changed)/4, lookMin), recountMax)
	switch {
	case c.err != nil:
		return max(0, c.counted.Add(recountAfter).Sub(now)), true
	case c.changed.After(c.counted):
		every = 0
	case every == recountMax:
		return max(0, c.counted.Add(every).Sub(now)), false
	}
	return max(0, c.counted.Add(every).Sub(now), c.allowance.wait(now)), true
}

// Note keeps the result of a count and its cost.
func (c *Schedule) Note(now time.Time, n Count) {
	c.Asked, c.counted, c.Flows, c.err = false, now, n.Flows, n.Err
	c.allowance.spend(now, n.Cost)
}

// CountAgain makes a count due: new flows came until now.
func (c *Schedule) CountAgain() { c.counted, c.Proven = time.Time{}, false }

// UntilLook returns the time until the next look, of a drain that began some time ago.
func (c *Schedule) UntilLook(now time.Time, spent time.Duration) time.Duration {
	return min(max(min(spent/50, now.Sub(c.changed)/4), lookMin), LookMax)
}

// recountAfter is the wait after a count that failed.
const recountAfter = 200 * time.Millisecond

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
