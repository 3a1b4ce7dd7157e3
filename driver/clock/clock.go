// Package clock reads the machine's clocks. Programs, demos, benchmarks and tests pass its Clock to
// the rooms.
//
// No room of rank 1 to 3 imports it: rooms receive a pando.Clock. In a simulation that clock is
// virtual.
package clock

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the machine's clock.
type Clock struct{}

// offset is how far the clock of this process is ahead of the machine's.
var offset atomic.Int64

// Shift sets how far the clock of this process is ahead of the machine's, for a virtual host whose
// clock is off (`pando lab up --skew`).
func Shift(d time.Duration) { offset.Store(int64(d)) }

// Now returns the machine's time.
func (Clock) Now() time.Time { return time.Now().Add(time.Duration(offset.Load())) }

// After delivers once, d from now. Stop releases the timer early.
func (Clock) After(d time.Duration) (c <-chan time.Time, stop func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// Suspended returns the time since the boot in which this machine was suspended.
func (Clock) Suspended() time.Duration {
	var boot, ran unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil ||
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &ran) != nil {
		return 0 // every Linux has these clocks
	}
	return time.Duration(boot.Nano() - ran.Nano())
}

// Worked returns the processor time that this process has used, in all its threads.
func Worked() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0 // every Linux has this clock
	}
	return time.Duration(t.Nano())
}
