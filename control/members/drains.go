package members

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
)

// DrainHost implements pando.HostOperators. The mark is a part of the membership and ends with it.
func (c *Members) DrainHost(
	ctx context.Context, name pando.HostName, keep time.Duration, by pando.Asker,
) (pando.HostDrainStatus, error) {
	if keep < 0 || keep > pando.HostDrainMax {
		return pando.HostDrainStatus{}, fmt.Errorf("%w: a drain for %s: want at most %s", pando.ErrInvalid,
			keep, pando.HostDrainMax)
	}
	now := c.mirror.Clock.Now()
	mark := pando.HostDrain{By: by, At: now}
	if keep > 0 {
		mark.Until = now.Add(keep)
	}
	return c.markDrain(ctx, name, &mark)
}

// UndrainHost implements pando.HostOperators.
func (c *Members) UndrainHost(
	ctx context.Context, name pando.HostName, _ pando.Asker,
) (pando.HostDrainStatus, error) {
	return c.markDrain(ctx, name, nil)
}

// markDrain writes the mark of a drain, or takes it away.
func (c *Members) markDrain(
	ctx context.Context, name pando.HostName, mark *pando.HostDrain,
) (pando.HostDrainStatus, error) {
	for n := 0; ; n++ {
		err := c.putDrain(ctx, name, mark)
		if err == nil {
			return c.HostDrain(ctx, name)
		}
		if !errors.Is(err, pando.ErrConflict) || n == mirror.Attempts {
			return pando.HostDrainStatus{}, fmt.Errorf("the drain of host %s: %w", name, err)
		}
	}
}

func (c *Members) putDrain(ctx context.Context, name pando.HostName, mark *pando.HostDrain) error {
	w, err := c.stored(ctx, pando.MemberKey(name))
	if err != nil {
		return err
	}
	m, ok := w.Members[name]
	switch {
	case !ok:
		return fmt.Errorf("%w; `pando hosts` lists those there are", pando.ErrNotFound)
	case mark == nil && m.V.Drain == nil:
		return nil
	}
	t := pando.Txn{If: []pando.Condition{m.If()}}
	m.V.Drain = mark
	t.Put = []pando.Stored{m.V}
	at, err := c.mirror.CommitSurely(ctx, t)
	if err != nil {
		return err
	}
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	c.mirror.Took(t, at)
	c.mirror.Wake()
	return nil
}

// HostDrain implements pando.HostOperators.
func (c *Members) HostDrain(
	_ context.Context, name pando.HostName,
) (st pando.HostDrainStatus, err error) {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	m, member := c.mirror.World.Members[name]
	if !member {
		return st, fmt.Errorf("host %s: %w; `pando hosts` lists those there are", name, pando.ErrNotFound)
	}
	return status.Drain(c.mirror, m.V), nil
}

// LiftDrains ends the drains whose time is over. It returns the time until the next one ends.
func (c *Members) LiftDrains(ctx context.Context, fence pando.Fence) time.Duration {
	next := time.Minute
	c.mirror.Mu.RLock()
	var over []pando.Txn
	now := c.mirror.Clock.Now()
	for name := range c.mirror.World.Drained {
		at := c.mirror.World.DrainEnds(name)
		if at.IsZero() {
			continue
		}
		if wait := at.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		m := c.mirror.World.Members[name]
		m.V.Drain = nil
		over = append(over, pando.Txn{If: []pando.Condition{m.If()}, Put: []pando.Stored{m.V}})
	}
	c.mirror.Mu.RUnlock()
	for _, t := range over {
		m := t.Put[0].(pando.Member)
		if err := c.mirror.Commit(ctx, fence, t); err != nil {
			c.mirror.Log.Warn("the end of a drain could not be written", "host", m.Name, "error", err)
			next = min(next, time.Second)
			continue
		}
		c.mirror.Log.Info("the time of a drain is over: the host takes instances again", "host", m.Name)
	}
	return next
}
