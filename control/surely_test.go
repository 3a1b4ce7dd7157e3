package control

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/driver/sim"
	"pando.run/pando/driver/wall"
)

// lossy loses the answers of commits: with or without their effect. Reads fail while away.
type lossy struct {
	pando.Registry
	lose, effect, away bool
}

func (l *lossy) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	if !l.lose {
		return l.Registry.Commit(ctx, t)
	}
	if l.effect {
		if _, err := l.Registry.Commit(ctx, t); err != nil {
			return 0, err
		}
	}
	return 0, pando.ErrUnavailable
}

func (l *lossy) Snapshot(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	if l.away {
		return pando.Snapshot{}, pando.ErrUnavailable
	}
	return l.Registry.Snapshot(ctx, prefix)
}

// A request whose answer of the store is lost is read back: it is done, or called unknown, and never
// called a failure.
func TestALostAnswerIsReadBack(t *testing.T) {
	for _, c := range []struct {
		what         string
		effect, away bool
		ok           bool
	}{
		{"the write happened", true, false, true},
		{"the write is not there", false, false, false},
		{"the store stays away", true, true, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lossy{Registry: sim.NewRegistry(1, 0)}
				ctl := New(Config{Registry: l, Clock: wall.Clock{}, IDs: &decidetest.Counting{},
					Log: slog.New(slog.DiscardHandler)})
				svc := pando.Service{ServiceKey: web, Target: 1, Current: 1, Latest: 1}
				spec := pando.Spec{Name: "web", Command: []string{"web"}}.WithDefaults()
				at, err := l.Registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{svc,
					pando.Revision{Service: web, Number: 1, Spec: spec}}})
				if err != nil {
					t.Fatal(err)
				}
				all, err := l.Registry.Snapshot(t.Context(), pando.Root)
				if err != nil {
					t.Fatal(err)
				}
				ctl.mirror.Take(pando.Batch{Revision: at, Changes: all.Records}, true)
				l.lose, l.effect, l.away = true, c.effect, c.away
				began := time.Now()
				_, err = ctl.Pin(t.Context(), web, 1, 0, pando.Asker{Name: "ann"})
				if (err == nil) != c.ok || err != nil && (!errors.Is(err, mirror.ErrUnknown) ||
					!errors.Is(err, pando.ErrUnavailable)) || time.Since(began) > 6*time.Second {
					t.Errorf("after %s: %v", time.Since(began), err)
				}
				if c.effect {
					l.lose, l.effect, l.away = true, true, c.away
				}
				_, err = ctl.Admit(t.Context(), pando.Member{Name: "h9", Server: true}, false, nil)
				if c.away {
					return // it reads before it writes
				}
				if (err == nil) != c.ok || err != nil && !errors.Is(err, mirror.ErrUnknown) {
					t.Errorf("admit: %v", err)
				}
			})
		})
	}
}
