package host

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// A clock that is off by a second is shown, and one that is off by five is a fault. What the way of
// an answer may explain is neither.
func TestTheClocksOfHostsAreCompared(t *testing.T) {
	for _, c := range []struct {
		off, way time.Duration
		want     string
	}{
		{0, 0, ""}, {900 * time.Millisecond, 0, ""}, {-900 * time.Millisecond, 0, ""},
		{1400 * time.Millisecond, time.Second, ""}, {-time.Minute, 3 * time.Minute, ""},
		{1500 * time.Millisecond, 0, "the clock of host2 is 1.5s ahead of the server's"},
		{-2 * time.Second, 0, "the clock of host2 is 2s behind the server's"},
		{-time.Minute, 0, "fault: the clock of host2 is 1m behind the server's"},
		{time.Minute, 20 * time.Second, "fault: the clock of host2 is 50s ahead of the server's"},
		{time.Hour, 0, "fault: the clock of host2 is 1h ahead of the server's"},
	} {
		at := consoletest.Noon.Add(c.way / 2).Add(c.off)
		off := pando.SkewOf(at, consoletest.Noon, consoletest.Noon.Add(c.way)).Seconds()
		h := pando.HostStatus{SkewSeconds: &off}
		h.Name = "host2"
		got := strings.Join(skewed([]pando.HostStatus{h, {}}), "\n")
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s off over a way of %s: %q, want %q", c.off, c.way, got, c.want)
		}
	}
}
