package control

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A refused request for a run has its reason.
func TestARunIsRefusedWithItsReason(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		_, err := l.StartRun(t.Context(), web, pando.RunAsk{}, anna)
		if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "run web -- COMMAND") {
			t.Errorf("without a command: %v", err)
		}
		ask := pando.RunAsk{Command: []string{"true"}}
		if _, err = l.StartRun(t.Context(), web, ask, anna); !errors.Is(err, pando.ErrUnsupported) {
			t.Errorf("an older host: %v", err)
		}
		if _, err = l.EndRun(t.Context(), web, 3, anna); !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("no such run: %v", err)
		}
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{
			pando.Host{Name: "h1", Runs: true}}}); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Second)
		for n := 1; n <= pando.RunsMax; n++ {
			if r, err := l.StartRun(t.Context(), web, ask, anna); err != nil || r.Number != n {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		if _, err = l.StartRun(t.Context(), web, ask, anna); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("one too many: %v", err)
		}
		r, err := l.EndRun(t.Context(), web, 2, anna)
		if err != nil || r.State != pando.RunEnded || !strings.Contains(r.Reason, "anna") {
			t.Errorf("%+v: %v", r, err)
		}
		if _, err = l.EndRun(t.Context(), web, 2, anna); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("twice: %v", err)
		}
	})
}

// An attached run for which no host has room says why at once, and ends after a minute.
func TestAnAttachedRunWaitsAMinuteForAHost(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		spec := pando.Spec{Name: "web", Command: []string{"web"},
			Resources: pando.Resources{MemoryBytes: 1 << 50}}.WithDefaults()
		svc := pando.Service{ServiceKey: web, Current: 1, Target: 1, Latest: 1, Phase: pando.ServiceServing}
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{svc,
			pando.Revision{Service: web, Number: 1, State: pando.RevisionCurrent, Spec: spec},
			pando.Host{Name: "h1", Runs: true, Memory: 1 << 30, CPUs: 4}}}); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Second)
		said := make(chan string, 100)
		ctx := pando.TellWaits(t.Context(), func(what string) { said <- what })
		began := time.Now()
		_, err := l.AttachRun(ctx, web, pando.SessionSpec{Command: []string{"true"}}, anna)
		took := time.Since(began)
		if !errors.Is(err, pando.ErrNotReady) || !strings.Contains(err.Error(), "no host has room") ||
			took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("after %s: %v", took, err)
		}
		named := false
		for len(said) > 0 {
			named = strings.Contains(<-said, "no host has room") || named
		}
		if !named {
			t.Error("the wait has no reason")
		}
		if r, _ := l.mirror.World.Services[web].V.Book.Newest(); r.State != pando.RunFailed {
			t.Errorf("%+v", r)
		}
	})
}
