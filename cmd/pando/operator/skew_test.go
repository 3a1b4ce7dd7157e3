package operator

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A clock that is off by a second is shown, and one that is off by five is a fault. What the way of
// an answer may explain is neither.
func TestTheClocksOfHostsAreCompared(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
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
		at := noon.Add(c.way / 2).Add(c.off)
		off := pando.SkewOf(at, noon, noon.Add(c.way)).Seconds()
		h := pando.HostStatus{SkewSeconds: &off}
		h.Name = "host2"
		got := strings.Join(skewed([]pando.HostStatus{h, {}}), "\n")
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s off over a way of %s: %q, want %q", c.off, c.way, got, c.want)
		}
	}
}

func TestTheSkewsOfALabAreOfItsHosts(t *testing.T) {
	got, err := skewsOf(map[string]string{"host2": "-60s", "host1": "1h"}, 2)
	if err != nil || got["host2"] != -time.Minute || got["host1"] != time.Hour {
		t.Errorf("%v: %v", got, err)
	}
	for _, bad := range []map[string]string{{"host3": "1s"}, {"host0": "1s"}, {"web": "1s"},
		{"host1": "60"}} {
		if got, err := skewsOf(bad, 2); err == nil {
			t.Errorf("%v is taken: %v", bad, got)
		}
	}
}

// The time of an instance in its phase is on the clock of its host, but for the phases that control
// orders. A time on an unknown clock that is ahead is not known.
func TestTheTimeInAPhaseIsOnTheClockOfItsHost(t *testing.T) {
	ahead, behind := 60.0, -60.0
	on := []pando.HostStatus{{Host: pando.Host{Name: "a"}, SkewSeconds: &ahead},
		{Host: pando.Host{Name: "b"}, SkewSeconds: &behind}}
	since := func(h pando.HostName, p pando.Phase, ago time.Duration) pando.InstanceStatus {
		return pando.InstanceStatus{Instance: pando.Instance{Host: h, Phase: p, Since: noon.Add(-ago)}}
	}
	for want, i := range map[string]pando.InstanceStatus{
		"2s": since("a", pando.PhaseInRotation, -58*time.Second),
		"3s": since("b", pando.PhaseReady, 63*time.Second),
		"4s": since("a", pando.PhaseDraining, 4*time.Second),
		"-":  since("c", pando.PhaseReady, -58*time.Second),
	} {
		if got := inPhase(i, noon, on); got != want {
			t.Errorf("%s on %s for %q, want %q", i.Phase, i.Host, got, want)
		}
	}
}
