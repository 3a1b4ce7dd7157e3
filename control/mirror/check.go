package mirror

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

// ErrStalled is the end of a control that follows the store no longer although the store answers.
var ErrStalled = errors.New("control follows the store no longer")

// CheckFollower returns an error once the store answers reads and its changes have not arrived for a
// minute. Nothing would be decided any more, without a sign. The process must then end: its warden
// starts it again, with new streams. While the store does not answer, it returns no verdict.
func (m *Mirror) CheckFollower(ctx context.Context) error {
	behind, want := 0, pando.StoreRevision(0)
	for {
		if err := pando.Sleep(ctx, m.Clock, followLook); err != nil {
			return err
		}
		seen := m.Seen()
		if seen == 0 {
			continue // it reads its first snapshot
		}
		s, err := m.Registry.Snapshot(ctx, pando.LeaderKey("control"))
		switch {
		case err != nil:
			behind, want = 0, 0
		case seen >= want:
			behind, want = 0, s.Revision
		case behind+1 < followLooks:
			behind++
		default:
			return fmt.Errorf("%w: the store is at revision %d and answers, and its changes after "+
				"revision %d have not arrived for %s; the server ends and is started again", ErrStalled,
				s.Revision, seen, followLooks*followLook)
		}
	}
}

// Seen returns the newest revision that this process has followed.
func (m *Mirror) Seen() pando.StoreRevision {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	return m.World.Seen
}
