package cli

import "time"

// Waits before a process that ended is started again. The first restart comes at once, because
// nothing decides meanwhile.
const (
	restartWaitMin = 100 * time.Millisecond
	restartWaitMax = 30 * time.Second
	steadyAfter    = time.Minute // a process that lived longer is not failing again and again
)

// RestartWait returns the wait before the next start of a process, from the wait before its last
// start and the time that it lived.
func RestartWait(last, lived time.Duration) time.Duration {
	if lived >= steadyAfter || last == 0 {
		return restartWaitMin
	}
	return min(2*last, restartWaitMax)
}
