package rig

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// own returns the processor time of this process, with that of threads that have ended.
func own() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// moments returns the mean and the standard deviation in milliseconds.
func moments(all []time.Duration) (mean, deviation float64) {
	for _, d := range all {
		mean += d.Seconds() * 1000 / float64(len(all))
	}
	for _, d := range all {
		off := d.Seconds()*1000 - mean
		deviation += off * off / float64(len(all))
	}
	return mean, math.Sqrt(deviation)
}
