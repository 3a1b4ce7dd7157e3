package load

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// draw returns a schedule of any rates and durations.
func draw(t *rapid.T) (s Schedule) {
	rate := rapid.Float64Range(0, 5000)
	last := rate.Draw(t, "rate")
	for range rapid.IntRange(1, 6).Draw(t, "steps") {
		next := rate.Draw(t, "rate")
		ms := rapid.IntRange(1, 20_000).Draw(t, "milliseconds")
		s = append(s, Step{For: time.Duration(ms) * time.Millisecond, From: last, To: next})
		last = next
	}
	return s
}

// Requests become due one after the other, and none after the end. Their number is the area below
// the rate.
func TestRequestsAreDueByTheAreaBelowTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t)
		area := 0.0
		for _, step := range s {
			area += step.For.Seconds() * (step.From + step.To) / 2
		}
		if got := float64(s.Due(s.Length())); math.Abs(got-area) > 1 {
			t.Fatalf("%v requests are due, the area is %v", got, area)
		}
		before := 0
		for at := time.Duration(0); at <= s.Length()+time.Second; at += s.Length()/50 + 1 {
			due := s.Due(at)
			if due < before {
				t.Fatalf("%d requests are due at %v, and %d before", due, at, before)
			}
			before = due
		}
		if end := s.Due(s.Length() + time.Hour); end != s.Due(s.Length()) {
			t.Fatalf("%d requests are due after the end", end-s.Due(s.Length()))
		}
		if s.Due(0) != 0 {
			t.Fatalf("%d requests are due before the start", s.Due(0))
		}
	})
}

// FuzzSchedule reads any text without a panic. A schedule that is read has positive steps and
// continues each step where the last one ended.
func FuzzSchedule(f *testing.F) {
	for _, s := range []string{
		"50,5s:400,10s:400,5s:50", "10,1s:20", "", "10", "10,", ",1s:1", "1e9,1s:1", "NaN,1s:1",
		"-1,1s:1",
		"1,-1s:1", "1,1s:Inf", "1,1s", "1,1s:2:3", "1,9999999h:1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSchedule(text)
		if err != nil {
			return
		}
		if len(s) == 0 || s.Length() <= 0 && len(s) < 3 { // three steps of 292 years may overflow
			t.Fatalf("%q has no length", text)
		}
		for n, step := range s {
			if step.For <= 0 || !(step.From >= 0 && step.To >= 0) || n > 0 && step.From != s[n-1].To {
				t.Fatalf("%q: step %d is %+v", text, n, step)
			}
		}
	})
}
