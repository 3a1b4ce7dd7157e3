package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"pando.run/pando"
	"pando.run/pando/control"
)

// askers is the path from one life of an agent to the controls. A call takes time, may reach a
// control that does not lead, and may lose its answer.
type askers struct {
	c    *cluster
	m    *mortal
	life uint64
}

func (a *askers) Answer(
	ctx context.Context, by pando.Fence, ask pando.Intent, sent func(),
) (out []pando.Record, err error) {
	dice := a.c.dice("ask "+string(ask.ID), a.life)
	err = a.m.call(func() error {
		nap(time.Duration(dice.Int64N(int64(2 * time.Millisecond))))
		out, err = a.leader(dice).Answer(ctx, by, ask, sent)
		if lost := dice.IntN(5) == 0; lost && !a.c.isQuiet() {
			return fmt.Errorf("%w: the answer was lost", pando.ErrUnavailable)
		}
		return err
	})
	return out, err
}

func (a *askers) leader(dice *rand.Rand) *control.Control {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	return a.c.leaders[dice.IntN(len(a.c.leaders))]
}
