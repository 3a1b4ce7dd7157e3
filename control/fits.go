package control

import (
	"context"
	"fmt"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// Fits implements pando.Operators.
func (c *operators) Fits(_ context.Context, s pando.ServiceKey) ([]pando.HostFit, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	l, ok := newDraft(c.world, s, c.Clock.Now(), c.IDs)
	if !ok {
		return nil, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	p := l
	return lifecycle.Explain(p.candidates(), p.wish(p.nextSpec(), p.home(), nil), p.waits()), nil
}
