package agent

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/turn"
)

// The intervals between sweeps of the connection table: normally, and while a caller waits for a
// drain.
const (
	sweepInterval      = 5 * time.Second
	sweepDrainInterval = 50 * time.Millisecond
)

// sweeper sweeps the connection table and keeps the last report.
type sweeper struct {
	steering pando.Steering
	clock    pando.Clock
	turn     turn.Turn
	swept    time.Time     // guarded by the turn
	took     time.Duration // of the last sweep; guarded by the turn
	counts   allowance     // of counting flows
	worked   func() time.Duration
	mu       sync.Mutex
	report   pando.SweepReport
	began    time.Time // of the sweep that reported
}

func newSweeper(c *Config) *sweeper {
	s := &sweeper{steering: c.Steering, clock: c.Clock, turn: turn.New(), worked: c.Worked}
	if s.worked == nil {
		s.worked = func() time.Duration { return time.Duration(s.clock.Now().UnixNano()) }
	}
	return s
}

func (a *Agent) sweepOften(ctx context.Context) {
	for pando.Sleep(ctx, a.Clock, sweepInterval) == nil {
		if err := a.sweeper.sweep(ctx, time.Time{}); err != nil && ctx.Err() == nil {
			a.Log.Warn("the connection table is swept again later", "in", sweepInterval, "error", err)
		}
	}
}

// sweep sweeps the table, at most once per sweepDrainInterval and for a fiftieth of the time. It
// also sweeps if the last sweep began before a time, while the allowance of counts lasts.
func (s *sweeper) sweep(ctx context.Context, after time.Time) error {
	if err := s.turn.Take(ctx); err != nil {
		return err
	}
	defer s.turn.Give()
	now := s.clock.Now()
	rests := now.Sub(s.swept) < min(max(sweepDrainInterval, countShare*s.took), sweepInterval)
	if rests && (!s.isOlder(after) || s.counts.wait(now) > 0) {
		return nil
	}
	report, err := s.steering.Sweep(ctx)
	if err != nil {
		return fmt.Errorf("sweep the connection table: %w", err)
	}
	s.swept = s.clock.Now()
	s.took = s.swept.Sub(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report, s.began = report, now
	return nil
}

// isOlder reports whether the last report may lack flows that began before a time.
func (s *sweeper) isOlder(than time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began.Before(than)
}

// flows returns the number of flows that an instance has in the connection table. No new flow has
// reached it since a time. A report of an earlier sweep proves flows, and does not prove that there
// are none: known is false then.
func (s *sweeper) flows(
	ctx context.Context, i pando.InstanceID, since time.Time,
) (n int, known bool, err error) {
	if err := s.sweep(ctx, since); err != nil {
		return 0, false, err
	}
	n = s.last().Flows[i]
	return n, n > 0 || !s.isOlder(since), nil
}

// last returns the report of the last sweep. The caller does not change it.
func (s *sweeper) last() pando.SweepReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// losses adds the flows that a full table dropped to the drops of the steering. They are as of the
// last sweep, so that a reader does not wait for a walk over a million flows.
func (s *sweeper) losses(ctx context.Context) (pando.Losses, error) {
	d, err := s.steering.Drops(ctx)
	if err != nil {
		return pando.Losses{}, err
	}
	l := pando.Losses{Dropped: d.Packets, Answered: d.Answered, Evicted: s.last().Evicted}
	maps.DeleteFunc(l.Dropped, func(_ pando.DropReason, n uint64) bool { return n == 0 })
	return l, nil
}
