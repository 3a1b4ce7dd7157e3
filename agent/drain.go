package agent

import (
	"sync"
	"time"
)

// The flows of a draining instance are counted when the steering has seen one end, and in any case
// after recountMax. Some ends cannot be seen: of a UDP flow, or of a client that is gone.
const (
	drainLookMin = 10 * time.Millisecond
	drainLookMax = time.Second
	recountMax   = 10 * time.Second
)

// counting decides when the flows of one draining instance are looked at and counted. Counts get
// rarer with the time since an end was seen. A connection that stays for a day costs one count in
// ten seconds.
type counting struct {
	ends    uint64
	changed time.Time // when an end was last seen, or the first look
	counted time.Time // zero: a count is due
	flows   int       // of the last count
}

// due returns the time until the next count. ends is the steering's count of ended flows.
func (c *counting) due(now time.Time, ends uint64) time.Duration {
	if c.changed.IsZero() || ends != c.ends {
		c.ends, c.changed = ends, now
	}
	if c.counted.IsZero() {
		return 0
	}
	every := min(max(now.Sub(c.changed)/4, drainLookMin), recountMax)
	return max(0, c.counted.Add(every).Sub(now))
}

// note keeps the result of a count. A failed count and one of no flows are soon repeated.
func (c *counting) note(now time.Time, flows int, err error) {
	c.flows, c.counted = flows, now
	if err != nil || flows == 0 {
		c.counted = time.Time{}
	}
}

// look returns the time until the next look, of a drain that began some time ago.
func (c *counting) look(now time.Time, spent time.Duration) time.Duration {
	return min(max(min(spent/50, now.Sub(c.changed)/4), drainLookMin), drainLookMax)
}

// Counts of flows may take a fiftieth of a processor, over all instances of a host, after the first
// half second. One count in recountMax is always allowed, however long it took.
const (
	countShare = 50
	countBurst = 500 * time.Millisecond
	countDebt  = countBurst + recountMax/countShare
)

// allowance limits the processor time that a host spends on counting flows. It may be used from any
// goroutine.
type allowance struct {
	mu    sync.Mutex
	spent time.Duration // not yet paid back
	at    time.Time
}

// wait returns the time until the next count may begin.
func (b *allowance) wait(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.payBack(now)
	return max(0, b.spent-countBurst) * countShare
}

// spend adds the time of a count.
func (b *allowance) spend(now time.Time, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.payBack(now)
	b.spent = min(b.spent+took, countDebt)
}

func (b *allowance) payBack(now time.Time) {
	if passed := now.Sub(b.at); !b.at.IsZero() && passed > 0 {
		b.spent = max(0, b.spent-passed/countShare)
	}
	b.at = now
}
