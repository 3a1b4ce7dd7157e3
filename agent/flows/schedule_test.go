package flows

import (
	"errors"
	"testing"
	"time"
)

// A day-long connection costs a count in ten seconds, and its end is noticed within a second.
func TestADrainOfADayIsCountedRarely(t *testing.T) {
	var c Schedule
	begin := time.Unix(0, 0)
	now, counts, looks, ends := begin, 0, 0, uint64(3)
	isDue := func() bool { wait, _ := c.UntilCount(now, ends); return wait == 0 }
	for now.Sub(begin) < 24*time.Hour {
		looks++
		if isDue() {
			counts++
			c.Note(now, Count{Flows: 1, Err: nil, Cost: time.Millisecond})
		}
		now = now.Add(c.UntilLook(now, now.Sub(begin)))
	}
	if counts > 8700 {
		t.Errorf("%d counts in a day, want one in 10 s", counts)
	}
	if looks > 90_000 {
		t.Errorf("%d looks in a day, want one a second", looks)
	}
	ends++ // the client closes its connection; its socket lives a little longer
	if !isDue() {
		t.Error("an end does not cause a count")
	}
	c.Note(now, Count{Flows: 1, Err: nil, Cost: time.Millisecond})
	at := now
	for counts = 0; now.Sub(at) < time.Second; now = now.Add(c.UntilLook(now, 24*time.Hour)) {
		if isDue() {
			counts++
			c.Note(now, Count{Flows: 1, Err: nil, Cost: time.Millisecond})
		}
	}
	if counts < 5 {
		t.Errorf("%d counts in the second after an end, want at least 5", counts)
	}
}

func TestAShortDrainIsLookedAtOften(t *testing.T) {
	var c Schedule
	now := time.Unix(0, 0)
	due := func() time.Duration { wait, _ := c.UntilCount(now, 0); return wait }
	if due() != 0 {
		t.Error("the first count is not due at once")
	}
	c.Note(now, Count{Flows: 1, Err: errors.New("no namespace"), Cost: 0})
	if due() != recountAfter {
		t.Error("a failed count is not repeated")
	}
	c.Note(now, Count{Flows: 1, Err: nil, Cost: 0})
	if got := due(); got != lookMin {
		t.Errorf("the next count is due after %v, want %v", got, lookMin)
	}
	c.CountAgain()
	if due() != 0 {
		t.Error("a count is not repeated, though new flows came")
	}
	if got := c.UntilLook(now, 0); got != lookMin {
		t.Errorf("the next look is after %v, want %v", got, lookMin)
	}
}

// TestManyConnectionsThatEndCostFewCounts drains 5,000 connections within a minute. A count costs 20
// ms. The counts take a hundredth of a processor, and the end is found within a second.
func TestManyConnectionsThatEndCostFewCounts(t *testing.T) {
	const connections, lasts, cost = 5000, time.Minute, 20 * time.Millisecond
	var c Schedule
	begin := time.Unix(0, 0)
	now, spent, last := begin, time.Duration(0), begin
	for {
		over := min(connections, int(now.Sub(begin)*connections/lasts))
		if wait, _ := c.UntilCount(now, uint64(2*over)); wait == 0 {
			spent += cost
			now = now.Add(cost)
			c.Note(now, Count{Flows: connections - over, Err: nil, Cost: cost})
			if last = now; over == connections {
				break
			}
		}
		now = now.Add(c.UntilLook(now, now.Sub(begin)))
	}
	if most := countBurst + now.Sub(begin)*11/1000; spent > most {
		t.Errorf("the counts took %v in %v, want at most %v", spent, now.Sub(begin), most)
	}
	if late := last.Sub(begin) - lasts; late > 3*time.Second {
		t.Errorf("the end was found after %v", late)
	}
}

// However long a count of an instance takes, its prompt counts take a hundredth of the time. A short
// count never waits.
func TestPromptCountsTakeAHundredthOfTheTime(t *testing.T) {
	var b allowance
	begin := time.Unix(0, 0)
	now, spent := begin, time.Duration(0)
	const took = 40 * time.Millisecond
	for now.Sub(begin) < 10*time.Minute {
		if wait := b.wait(now); wait > 0 {
			now = now.Add(wait)
			continue
		}
		now = now.Add(took)
		spent += took
		b.spend(now, took)
	}
	share := (spent - countBurst).Seconds() / now.Sub(begin).Seconds()
	if share > 1.1/countShare || share < 0.8/countShare {
		t.Errorf("counts take %.3f of the time, want %.3f", share, 1.0/countShare)
	}
	b = allowance{}
	for range 1000 { // 10 a second of a millisecond each
		if b.wait(now) > 0 {
			t.Fatal("a short count waits")
		}
		b.spend(now, time.Millisecond)
		now = now.Add(100 * time.Millisecond)
	}
}

// A machine under load makes counts long. They hold up a drain for recountMax, and not for a hundred
// times their sum.
func TestLongCountsHoldADrainUpForTenSeconds(t *testing.T) {
	var b allowance
	now := time.Unix(0, 0)
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		b.spend(now, 100*time.Millisecond)
	}
	if got := b.wait(now); got <= 0 || got > recountMax {
		t.Errorf("the next count waits for %v, want at most %v", got, recountMax)
	}
	if got := b.wait(now.Add(recountMax)); got != 0 {
		t.Errorf("after %v it waits for another %v", recountMax, got)
	}
}
