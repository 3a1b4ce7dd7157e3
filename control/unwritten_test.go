package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/requests"
)

func TestAStatusReportsWhatCannotBeWritten(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		status := func() pando.ServiceStatus {
			synctest.Wait()
			st, err := l.Service(t.Context(), web)
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		_, err := l.Pin(t.Context(), web, 1, time.Second, pando.Asker{Kind: pando.AskerOperator})
		if err != nil {
			t.Fatal(err)
		}
		status()
		l.registry.Fail(pando.ErrStoreFull)
		time.Sleep(time.Second + time.Second) // the pin has ended
		if st := status(); st.Problem != nil {
			t.Errorf("reported too soon: %+v", st.Problem)
		}
		time.Sleep(4 * time.Second)
		st := status()
		if st.Problem == nil || st.Problem.Kind != pando.DecidedUnwritten ||
			!strings.Contains(st.Problem.Reason, pando.ErrStoreFull.Error()) ||
			!strings.Contains(st.Reason, pando.ErrStoreFull.Error()) {
			t.Errorf("the status shows %q, problem %+v", st.Reason, st.Problem)
		}
		l.registry.Fail(nil)
		time.Sleep(2 * time.Second)
		if st := status(); st.Problem != nil || strings.Contains(st.Reason, "written") {
			t.Errorf("after the store has room the status shows %q, problem %+v", st.Reason, st.Problem)
		}
	})
}

func TestTheServiceThatSteeringHasNoPlaceForIsRefused(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		spec := func(n int) pando.Spec {
			return pando.Spec{Name: pando.ServiceName(fmt.Sprint("s", n)), Command: []string{"true"}}
		}
		by := pando.Asker{Kind: pando.AskerOperator}
		type answer struct {
			n   int
			err error
		}
		answers := make(chan answer)
		const most, more = 256, 9
		l.request(requests.Config{Most: most})
		for n := range most - 1 + more { // web is there already; all at the same time
			go func() {
				_, err := l.Deploy(t.Context(), spec(n), by)
				answers <- answer{n, err}
			}()
		}
		var refused []int
		for range most - 1 + more {
			if a := <-answers; errors.Is(a.err, pando.ErrRefused) {
				refused = append(refused, a.n)
				if !strings.Contains(a.err.Error(), "256 services") || !strings.Contains(a.err.Error(),
					"pando rm") {
					t.Errorf("refused without a reason or a next step: %v", a.err)
				}
			} else if a.err != nil {
				t.Fatal(a.err)
			}
		}
		if len(refused) != more {
			t.Fatalf("%d were refused, want %d", len(refused), more)
		}
		l.mirror.Mu.Lock()
		n := len(l.mirror.World.Services)
		var one pando.ServiceKey
		for _, s := range l.mirror.World.Names() {
			if s != web {
				one = s
			}
		}
		known, _ := l.mirror.World.SpecOf(one, 1)
		l.mirror.Mu.Unlock()
		if n != most {
			t.Errorf("%d services, want %d", n, most)
		}
		known.Environment = map[string]string{"A": "b"}
		if _, err := l.Deploy(t.Context(), known, by); err != nil {
			t.Errorf("a new revision of a service that is there: %v", err)
		}
		l.removed(t, one)
		if _, err := l.Deploy(t.Context(), spec(refused[0]), by); err != nil {
			t.Errorf("after one was removed: %v", err)
		}
	})
}

// removed removes a service and waits until it is gone. The test plays its agent.
func (l leadership) removed(t *testing.T, s pando.ServiceKey) {
	if err := l.Remove(t.Context(), s, false, pando.Asker{Kind: pando.AskerOperator}); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if _, err := l.Service(t.Context(), s); errors.Is(err, pando.ErrNotFound) {
			return
		}
		l.mirror.Mu.Lock()
		var gone []pando.Key
		for _, i := range l.mirror.World.Of(s) {
			gone = append(gone, i.Key())
		}
		l.mirror.Mu.Unlock()
		if len(gone) > 0 {
			if _, err := l.registry.Commit(t.Context(), pando.Txn{Delete: gone}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond) // of virtual time
	}
	t.Fatalf("%s does not go", s)
}
