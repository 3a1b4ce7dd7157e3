package report

import (
	"fmt"
	"time"
)

// Took formats a duration for people: at most three significant digits and a unit.
func Took(d time.Duration) string {
	v, unit := float64(d)/float64(time.Millisecond), "ms"
	if d >= 10*time.Second {
		v, unit = v/1e3, "s"
	}
	digits := 2
	switch {
	case v >= 100:
		digits = 0
	case v >= 10:
		digits = 1
	}
	return fmt.Sprintf("%.*f %s", digits, v, unit)
}
