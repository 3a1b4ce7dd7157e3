package sim

import "time"

// Clock is the time of the caller's synctest bubble. Outside of a bubble it is the machine's time.
type Clock struct{}

// Now returns the time of the bubble.
func (Clock) Now() time.Time { return time.Now() }

// After delivers once, d from now. Stop releases the timer early.
func (Clock) After(d time.Duration) (c <-chan time.Time, stop func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}
