package service

import (
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// The time of an instance in its phase is on the clock of its host, but for the phases that control
// orders. A time on an unknown clock that is ahead is not known.
func TestTheTimeInAPhaseIsOnTheClockOfItsHost(t *testing.T) {
	ahead, behind := 60.0, -60.0
	on := []pando.HostStatus{{Host: pando.Host{Name: "a"}, SkewSeconds: &ahead},
		{Host: pando.Host{Name: "b"}, SkewSeconds: &behind}}
	since := func(h pando.HostName, p pando.Phase, ago time.Duration) pando.InstanceStatus {
		return pando.InstanceStatus{Instance: pando.Instance{Host: h, Phase: p, Since: consoletest.Noon.Add(-ago)}}
	}
	for want, i := range map[string]pando.InstanceStatus{
		"2s": since("a", pando.PhaseInRotation, -58*time.Second),
		"3s": since("b", pando.PhaseReady, 63*time.Second),
		"4s": since("a", pando.PhaseDraining, 4*time.Second),
		"-":  since("c", pando.PhaseReady, -58*time.Second),
	} {
		if got := inPhase(i, consoletest.Noon, on); got != want {
			t.Errorf("%s on %s for %q, want %q", i.Phase, i.Host, got, want)
		}
	}
}
