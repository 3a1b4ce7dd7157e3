package control

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/driver/sim"
	"pando.run/pando/driver/wall"
)

// hushed is a store whose watches bring nothing while silent. Its reads fail while away.
type hushed struct {
	pando.Registry
	silent, away atomic.Bool
}

func (m *hushed) Snapshot(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	if m.away.Load() {
		return pando.Snapshot{}, pando.ErrUnavailable
	}
	return m.Registry.Snapshot(ctx, prefix)
}

func (m *hushed) Watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	out := make(chan pando.Batch)
	go func() {
		defer close(out)
		for b := range m.Registry.Watch(ctx, prefix, after) {
			for m.silent.Load() && ctx.Err() == nil {
				time.Sleep(time.Second) // virtual
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// A control whose watch is silent although the store answers ends within two minutes, and says so.
// It does not end while the store is out of reach, nor after a silence that ends.
func TestAControlThatFollowsNothingEnds(t *testing.T) {
	for _, one := range []struct {
		what   string
		away   bool
		silent time.Duration // 0: for ever
		ends   bool
	}{
		{"the watch is silent", false, 0, true},
		{"the store is away", true, 0, false},
		{"the watch was silent for a while", false, 30 * time.Second, false},
	} {
		t.Run(one.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &hushed{Registry: sim.NewRegistry(1, 0)}
				c := New(Config{Clock: wall.Clock{}, Registry: m, Log: slog.New(slog.DiscardHandler),
					IDs: &decidetest.Counting{}, Name: "one"})
				write(t, m, 1, 10)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				time.Sleep(time.Second)
				m.silent.Store(true)
				write(t, m, 3, 10)
				m.away.Store(one.away)
				if one.silent > 0 {
					time.AfterFunc(one.silent, func() { m.silent.Store(false) })
				}
				select {
				case err := <-ended:
					if !one.ends || !errors.Is(err, mirror.ErrStalled) {
						t.Errorf("it ended: %v", err)
					}
				case <-time.After(10 * time.Minute):
					if one.ends {
						t.Error("it goes on without the changes of the store")
					}
				}
				cancel()
				m.silent.Store(false)
				m.away.Store(false)
				time.Sleep(time.Minute) // virtual: the last waits end
			})
		})
	}
}
