package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control"
)

// askers is how one life of an agent reaches the controls: the call takes time, goes to one that does not lead as well as to
// one that does, and loses some of its answers.
type askers struct {
	c    *cluster
	m    *mortal
	mu   sync.Mutex
	dice *rand.Rand
}

func (a *askers) draw(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dice.IntN(n)
}

func (a *askers) Answer(ctx context.Context, by pando.Fence, ask pando.Intent) (out []pando.Record, err error) {
	err = a.m.call(func() error {
		nap(time.Duration(a.draw(2000)) * time.Microsecond)
		out, err = a.leader().Answer(ctx, by, ask)
		if lost := a.draw(5) == 0; lost && !a.c.isQuiet() {
			return fmt.Errorf("%w: the answer was lost", pando.ErrUnavailable)
		}
		return err
	})
	return out, err
}

func (a *askers) leader() *control.Control {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	return a.c.leaders[a.draw(len(a.c.leaders))]
}
