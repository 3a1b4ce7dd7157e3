package flows

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// slowBox has a flow. Its count takes two seconds.
type slowBox struct{ pando.Sandbox }

func (slowBox) Flows(ctx context.Context) (int, error) {
	return 1, pando.Sleep(ctx, sim.Clock{}, 2*time.Second)
}

// The allowance is of processor time: a count that only waited for the processor is free.
func TestACountCostsItsProcessorTime(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var worked func() time.Duration // nil: it counts as busy all the time
			if !busy {
				worked = func() time.Duration { return time.Millisecond }
			}
			clock := sim.Clock{}
			c := NewCounter(NewSweeper(sim.NewSteering(), clock, slog.New(slog.DiscardHandler)), clock, worked)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go c.Run(ctx)
			answer := make(chan Count, 1)
			c.Queue(Ask{Instance: "web-1", Box: slowBox{}, Answer: func(n Count) { answer <- n }}, true)
			n := <-answer
			var s Schedule
			s.Note(clock.Now(), n)
			if got := s.allowance.spent > 0; n.Err != nil || n.Flows != 1 || got != busy {
				t.Errorf("busy %v: the count costs something: %v; %+v", busy, got, n)
			}
		})
	}
}
