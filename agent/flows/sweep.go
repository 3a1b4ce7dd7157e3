// Package flows counts the flows of the instances of one host: in the kernel's connection table,
// and at the sockets of an instance that drains. It also decides when a drain is worth another
// count.
//
// It never ends a drain: the runner of the instance does.
package flows

import (
	"context"
	"fmt"
	"log/slog"
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

// Sweeper sweeps the connection table and keeps the last report.
type Sweeper struct {
	steering pando.Steering
	clock    pando.Clock
	log      *slog.Logger
	turn     turn.Turn
	swept    time.Time     // guarded by the turn
	took     time.Duration // of the last sweep; guarded by the turn
	mu       sync.Mutex
	report   pando.SweepReport
	began    time.Time // of the sweep that reported
}

// NewSweeper returns a sweeper without a report. Run keeps its report fresh.
func NewSweeper(s pando.Steering, c pando.Clock, log *slog.Logger) *Sweeper {
	return &Sweeper{steering: s, clock: c, log: log, turn: turn.New()}
}

// Run sweeps the table until ctx ends.
func (s *Sweeper) Run(ctx context.Context) {
	for pando.Sleep(ctx, s.clock, sweepInterval) == nil {
		if err := s.Sweep(ctx, time.Time{}); err != nil && ctx.Err() == nil {
			s.log.Warn("the connection table is swept again later", "in", sweepInterval, "error", err)
		}
	}
}

// Sweep sweeps the table, at most once per sweepDrainInterval and for a fiftieth of the time. It
// always sweeps if the last sweep began before a time. Callers that wait together share one sweep.
func (s *Sweeper) Sweep(ctx context.Context, after time.Time) error {
	if err := s.turn.Take(ctx); err != nil {
		return err
	}
	defer s.turn.Give()
	now := s.clock.Now()
	rests := now.Sub(s.swept) < min(max(sweepDrainInterval, countShare*s.took), sweepInterval)
	if rests && !s.isOlder(after) {
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
func (s *Sweeper) isOlder(than time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began.Before(than)
}

// Flows returns the number of flows that an instance has in the connection table. No new flow has
// reached it since a time.
func (s *Sweeper) Flows(ctx context.Context, i pando.InstanceID, since time.Time) (int, error) {
	if err := s.Sweep(ctx, since); err != nil {
		return 0, err
	}
	return s.Last().Flows[i], nil
}

// Last returns the report of the last sweep. The caller does not change it.
func (s *Sweeper) Last() pando.SweepReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// Losses adds the flows that a full table dropped to the drops of the steering. They are as of the
// last sweep, so that a reader does not wait for a walk over a million flows.
func (s *Sweeper) Losses(ctx context.Context) (pando.Losses, error) {
	d, err := s.steering.Drops(ctx)
	if err != nil {
		return pando.Losses{}, err
	}
	l := pando.Losses{Dropped: d.Packets, Answered: d.Answered, Evicted: s.Last().Evicted}
	maps.DeleteFunc(l.Dropped, func(_ pando.DropReason, n uint64) bool { return n == 0 })
	return l, nil
}
