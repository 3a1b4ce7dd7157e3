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
