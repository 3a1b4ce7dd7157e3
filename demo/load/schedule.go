package load

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Step is a period in which the offered load changes linearly from one rate to another, in requests
// per second.
type Step struct {
	For      time.Duration
	From, To float64
}

// Schedule is the offered load over time.
type Schedule []Step

// ParseSchedule parses a comma-separated list: `RATE`, then any number of `DURATION:RATE`. For
// example, `50,5s:400,10s:400,5s:50` begins at 50/s, climbs to 400/s in 5 s, holds for 10 s and
// falls back in 5 s.
func ParseSchedule(text string) (Schedule, error) {
	first, rest, _ := strings.Cut(text, ",")
	rate, err := parseRate(first)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", text, err)
	}
	var s Schedule
	for part := range strings.SplitSeq(rest, ",") {
		span, to, _ := strings.Cut(part, ":")
		d, err := time.ParseDuration(span)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("schedule %q: step %q: want DURATION:RATE such as 5s:400", text, part)
		}
		next, err := parseRate(to)
		if err != nil {
			return nil, fmt.Errorf("schedule %q: step %q: %w", text, part, err)
		}
		s = append(s, Step{For: d, From: rate, To: next})
		rate = next
	}
	return s, nil
}

func parseRate(text string) (float64, error) {
	r, err := strconv.ParseFloat(text, 64)
	if err != nil || !(r >= 0 && r <= 1e6) {
		return 0, fmt.Errorf("rate %q: want requests per second, 0 to 1000000", text)
	}
	return r, nil
}

// Due returns the number of requests that are due in the first t of the schedule.
func (s Schedule) Due(t time.Duration) int {
	var sum float64
	for _, step := range s {
		part := min(t, step.For)
		if part <= 0 {
			break
		}
		reached := step.From + (step.To-step.From)*part.Seconds()/step.For.Seconds()
		sum += part.Seconds() * (step.From + reached) / 2
		t -= part
	}
	return int(math.Floor(sum + 1e-6))
}

// Length returns the duration of the schedule.
func (s Schedule) Length() time.Duration {
	var d time.Duration
	for _, step := range s {
		d += step.For
	}
	return d
}
