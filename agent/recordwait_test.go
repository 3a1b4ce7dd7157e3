package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// bubbleClock is the time of a bubble.
type bubbleClock struct{ agentClock }

func (bubbleClock) Now() time.Time { return time.Now() }

// A step waits for the next one at most as long as its phase allows. The clock that wrote the begin of
// its phase may be ahead of the clock of this host.
func TestAStepIsRecordedSoonOnAnyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ahead := range []time.Duration{-time.Minute, 0, time.Minute} {
			for phase, most := range map[pando.Phase]time.Duration{
				pando.PhasePlaced: 0, pando.PhaseDraining: 0, pando.PhaseReady: 15 * time.Millisecond,
			} {
				a := &Agent{}
				a.Clock = bubbleClock{}
				c := newRecorder(&runner{a: a})
				c.add(pando.Instance{Phase: phase, Since: time.Now().Add(ahead)}, nil)
				if wait := c.wait(); wait > most {
					t.Errorf("%s since %s from now: it waits for %s, want at most %s", phase, ahead, wait, most)
				}
			}
		}
	})
}
