package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

func TestAnAskBeyondThePaceIsNotWritten(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		r, err := b.agent.crews.Runner("web-1")
		b.ok(err)
		for start := time.Now(); time.Now().Equal(start); {
			b.ok(r.Caller.Paced(b.ctx, clock.Clock{}))
		}
		ctx, cancel := context.WithTimeout(b.ctx, time.Millisecond)
		defer cancel()
		_, err = b.agent.self.Replicate(ctx, "web-1", pando.Ask{})
		if !errors.Is(err, context.DeadlineExceeded) || len(b.world().Intents) > 0 {
			t.Errorf("one more ask at once: %v, %d are written", err, len(b.world().Intents))
		}
	})
}

// A reason that an instance sends stays on one line and contains no terminal control sequences.
func TestReasonsAreOneLine(t *testing.T) {
	const reasonBytesMax = 400
	forged := "load\n12:00:00 deploy operator: all is well\r\x1b[2J\x1b]0;x\a\u202e\xff" +
		strings.Repeat("ä", reasonBytesMax)
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		defer cancel()
		i, _ := b.agent.self.Replicate(ctx, "web-1",
			pando.Ask{Reason: forged, Inputs: map[string]float64{"req\n/s": 812}})
		for _, said := range []string{i.Reason, i.History[0].Reason} {
			if strings.ContainsAny(said, "\n\r\x1b\a\u202e") || len(said) > reasonBytesMax+4 ||
				!strings.HasPrefix(said, "load 12:00:00 deploy") {
				t.Errorf("the reason is %q", said)
			}
		}
		if i.Inputs["req /s"] != 812 || len(i.Inputs) != 1 {
			t.Errorf("the inputs are %v", i.Inputs)
		}
		many := map[string]float64{}
		for n := range 1000 {
			many[fmt.Sprint(n)] = 1
		}
		_, err := b.agent.self.Replicate(ctx, "web-1", pando.Ask{Inputs: many})
		if !errors.Is(err, pando.ErrTooLarge) {
			t.Errorf("1,000 inputs: %v", err)
		}
		if err := b.agent.self.PutMetrics(ctx, "web-1", many); !errors.Is(err, pando.ErrTooLarge) {
			t.Errorf("1,000 metrics: %v", err)
		}
	})
}
