package pando

import (
	"context"
	"time"
)

// Clock is the only source of time below cmd/. In a simulation it is virtual.
type Clock interface {
	Now() time.Time
	// After delivers once, d from now. Stop releases it early.
	After(d time.Duration) (c <-chan time.Time, stop func())
}

// WallClock is the machine's clock. Only cmd/ makes one.
type WallClock struct{}

func (WallClock) Now() time.Time { return time.Now() }

func (WallClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// IDs makes unused names. Sequential names begin with the time, so they sort by birth.
type IDs interface {
	Instance(ServiceName) InstanceID // website-7k3fq
	Sequential(now time.Time) string // 01jd…: 26 characters
}

// Sleep waits for d on the clock, or until the context ends.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	ch, stop := c.After(d)
	defer stop()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
