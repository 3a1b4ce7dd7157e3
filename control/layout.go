package control

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/world"
)

// nextLayout returns the layout that the cluster may write from now on: newest, once every member's
// agent reads it. A member that is away may return with an older build, so it holds the switch
// back.
func nextLayout(w *world.World, newest int) int {
	now := max(w.Cluster.V.Layout, pando.Layout)
	if newest <= now || len(w.Members) == 0 {
		return now
	}
	for name := range w.Members {
		h, here := w.Hosts[name]
		if !here || h.V.Layout < newest {
			return now
		}
	}
	return newest
}

// switchLayout makes the cluster write the newest layout that this build has, once all hosts read
// it. The record that says so is the last one of the former layout.
func (c *Control) switchLayout(ctx context.Context, fence pando.Fence, newest int) {
	c.mirror.Mu.Lock()
	own := c.mirror.World.Cluster
	next := nextLayout(c.mirror.World, newest)
	c.mirror.Mu.Unlock()
	if own.V.ID == "" || next <= max(own.V.Layout, pando.Layout) {
		return
	}
	t := pando.Txn{If: []pando.Condition{own.If()}}
	own.V.Layout = next
	t.Put = []pando.Stored{own.V}
	if err := c.mirror.Commit(ctx, fence, t); err != nil {
		c.mirror.Log.Warn("the cluster keeps writing records of the former layout", "error", err)
		return
	}
	c.mirror.Log.Info("all hosts read it: records are written in a newer layout", "layout", next)
}
