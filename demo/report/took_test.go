package report

import (
	"testing"
	"time"
)

func TestADurationHasNoMoreDigitsThanMatter(t *testing.T) {
	for d, want := range map[time.Duration]string{
		520 * time.Microsecond: "0.52 ms", 17940 * time.Microsecond: "17.9 ms",
		277712 * time.Microsecond: "278 ms", 4562940 * time.Microsecond: "4563 ms",
		12345 * time.Millisecond: "12.3 s",
	} {
		if got := Took(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
