package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
)

// The check that control still follows the store. Only several looks in a row end the process: a
// process that was stopped for a while looks once before its changes arrive.
const (
	followLook  = 10 * time.Second // between two looks
	followLooks = 6                // in a row that find control behind
)

// errStalled is the end of a control that follows the store no longer although the store answers.
var errStalled = errors.New("control follows the store no longer")

// checkFollower returns an error once the store answers reads and its changes have not arrived for a
// minute. Nothing would be decided any more, without a sign. The process must then end: its warden
// starts it again, with new streams. While the store does not answer, it returns no verdict.
func (c *view) checkFollower(ctx context.Context) error {
	behind, want := 0, pando.StoreRevision(0)
	for {
		if err := pando.Sleep(ctx, c.Clock, followLook); err != nil {
			return err
		}
		seen := c.seen()
		if seen == 0 {
			continue // it reads its first snapshot
		}
		s, err := c.Registry.Snapshot(ctx, pando.LeaderKey("control"))
		switch {
		case err != nil:
			behind, want = 0, 0
		case seen >= want:
			behind, want = 0, s.Revision
		case behind+1 < followLooks:
			behind++
		default:
			return fmt.Errorf("%w: the store is at revision %d and answers, and its changes after "+
				"revision %d have not arrived for %s; the server ends and is started again", errStalled,
				s.Revision, seen, followLooks*followLook)
		}
	}
}

// seen returns the newest revision that this process has followed.
func (c *view) seen() pando.StoreRevision {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.world.Seen
}
