package function

import (
	"testing"
	"time"
)

// whole returns a run that keeps every promise: 1,000 packets, of which the kill lost 40.
func whole() (*timeline, result) {
	t := newTimeline()
	t.begin = time.Unix(1000, 0)
	at := func(d time.Duration) uint64 { return uint64(t.begin.Add(d).UnixNano()) }
	t.offered = []sent{{Planned: 1000, Packets: 1000, Sent: 1000, Seconds: 10}}
	t.final = came{Packets: 960, Losses: []loss{{Packets: 40, FromNanos: at(5 * time.Second),
		ToNanos: at(5100 * time.Millisecond)}}}
	t.dead = kill{at: t.begin.Add(5010 * time.Millisecond), over: t.begin.Add(5100 * time.Millisecond)}
	t.samples = []sample{{active: 1}, {active: 3}, {active: 2}}
	return t, result{
		bill:     []billed{{Function: "policer", Packets: 970}, {Function: "ids", Packets: 970}},
		expected: map[string]bool{"a 1": true}, found: map[string]bool{"a 1": true}, planted: true,
	}
}

func TestEachPromiseIsHeldAgainstWhatWasCounted(t *testing.T) {
	for _, c := range []struct {
		breach string // the check that must fail
		spoil  func(*timeline, *result)
	}{
		{"", func(*timeline, *result) {}},
		{"the generator lost none", func(t *timeline, _ *result) { t.offered[0].NotTaken = 1 }},
		{"the receiver lost none", func(t *timeline, _ *result) { t.final.Overrun = 1 }},
		{"the receiver lost none", func(t *timeline, _ *result) { t.final.Twice = 1 }},
		{"units came and went with the load", func(t *timeline, _ *result) { t.samples[1].active = 2 }},
		{"a unit was killed, others took its place",
			func(t *timeline, _ *result) { t.dead.over = time.Time{} }},
		{"packets in = packets out + those lost in the kill",
			func(t *timeline, _ *result) { t.final.Losses[0].Packets = 39 }},
		{"packets in = packets out + those lost in the kill",
			func(t *timeline, _ *result) { t.final.Losses[0].FromNanos, t.final.Losses[0].ToNanos = 1, 2 }},
		// The packet waited in the ring until the kill.
		{"", func(t *timeline, _ *result) { t.final.Losses[0].FromNanos -= 2e9 }},
		{"", func(t *timeline, r *result) {
			t.final.Losses[0].FromNanos, t.final.Losses[0].ToNanos, r.ring, r.wireIn = 1, 2, 39, 1
		}},
		{"packets in = packets out + those lost in the kill", func(t *timeline, r *result) {
			t.final.Losses[0].FromNanos, t.final.Losses[0].ToNanos, r.ring = 1, 2, 39
		}},
		{"the bill = packets processed", func(_ *timeline, r *result) { r.wireOut = 11 }},
		{"the bill = packets processed",
			func(_ *timeline, r *result) { r.bill[0].Packets, r.bill[1].Packets = 993, 993 }},
		{"the bill = packets processed", func(_ *timeline, r *result) { r.bill[1].Packets = 959 }},
		{"alerts found = alerts expected of what came out",
			func(_ *timeline, r *result) { r.found, r.expected = nil, nil }},
		{"alerts found = alerts expected of what came out",
			func(_ *timeline, r *result) { r.found = map[string]bool{"b 1": true} }},
		{"alerts found = alerts expected of what came out",
			func(_ *timeline, r *result) { r.found["b 1"] = true }},
	} {
		line, r := whole()
		c.spoil(line, &r)
		failed := map[string]bool{}
		for _, check := range r.checks(line) {
			if !check.Held {
				failed[check.Name] = true
			}
		}
		if (c.breach == "") != (len(failed) == 0) || c.breach != "" && !failed[c.breach] {
			t.Errorf("%q should fail, %v did", c.breach, failed)
		}
	}
}

func TestWhatIsShownIsAsOfOneMoment(t *testing.T) {
	line := newTimeline()
	line.sent(sent{BeginNanos: uint64(time.Unix(1000, 0).UnixNano()), Seconds: 0.1, Packets: 30})
	line.received = line.begin.Add(-50 * time.Millisecond) // the receiver began earlier
	line.arrived = []came{{AtMillis: 100, Packets: 10}, {AtMillis: 148, Packets: 15},
		{AtMillis: 200, Packets: 20}}
	line.samples = []sample{{at: line.begin.Add(90 * time.Millisecond), billed: 28},
		{at: line.begin.Add(110 * time.Millisecond), billed: 40}}
	if got := line.totals(); got != "sent 30  came out 25  billed ~28" {
		t.Errorf("100 ms after the begin it shows %q", got)
	}
	line.sent(sent{BeginNanos: uint64(line.begin.UnixNano()), Seconds: 0.11, Packets: 45, Last: true})
	if got := line.totals(); got != "sent 45  came out 45  billed ~40" {
		t.Errorf("at the end it shows %q", got)
	}
}

func TestWhatTheCommandsSayIsRead(t *testing.T) {
	line := newTimeline()
	line.saw([]unit{
		{Name: "demo", State: "running", PID: 5, Group: &struct{ Accepting int }{1},
			Functions: []billed{{Packets: 5}, {Packets: 4}}},
		{Name: "demo.0", State: "running", PID: 7, Epoch: 1,
			Functions: []billed{{Packets: 5}, {Packets: 4}}}, {Name: "old", State: "crashed"},
	})
	if s := line.samples[0]; s.active != 1 || s.accepting != 1 || s.billed != 4 {
		t.Fatalf("one unit that runs and billed 4 is seen as %+v", s)
	}
	line.dead = kill{unit: unit{Name: "demo.0", Epoch: 1}, at: time.Now()}
	line.saw(nil)
	if len(line.events) != 2 || line.events[1].What != "dead" || !line.dead.over.IsZero() {
		t.Fatalf("the only unit was killed: %+v, %+v", line.dead, line.events)
	}
	line.saw([]unit{{Name: "demo.1", State: "running", PID: 8, Epoch: 1}})
	if s := line.samples[2]; line.dead.over.IsZero() || len(line.events) != 3 ||
		line.events[2].What != "started" || s.billed != 4 {
		t.Fatalf("a unit in the place of the one that was killed gives %+v, %+v", s, line.events)
	}
	line.saw(nil)
	if len(line.events) != 4 || line.events[3].What != "left" {
		t.Fatalf("a unit that was not killed and is gone gives %+v", line.events)
	}
}

func TestOthersThatServeAlreadyTakeTheFlowsOfTheDead(t *testing.T) {
	line := newTimeline()
	two := []unit{
		{Name: "demo.0", State: "running", Epoch: 1}, {Name: "demo.1", State: "running", Epoch: 1},
	}
	line.saw(two)
	line.dead = kill{unit: two[0], at: time.Now()}
	line.saw(two)
	if !line.dead.over.IsZero() {
		t.Fatal("nobody has seen yet that it is dead")
	}
	line.saw(two[1:])
	if line.dead.over.IsZero() || line.events[len(line.events)-1].Outcome != "units that serve on: 1" {
		t.Fatalf("the other one serves: %+v, %+v", line.dead, line.events)
	}
}
