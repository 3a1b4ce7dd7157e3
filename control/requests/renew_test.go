package requests

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
)

// restart marks the instances of the table's service that leave, as Restart does.
func restart(tb *decidetest.Table, only pando.InstanceID) {
	tb.T.Helper()
	c := &desk{mirror: &mirror.Mirror{World: tb.W}}
	svc := tb.W.Services[web].V
	if _, err := c.beginRestart(&svc, only, pando.Asker{}); err != nil {
		tb.T.Fatal(err)
	}
	tb.Put(svc)
}

func TestARestartReplacesEveryInstanceOfTheRevision(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*pando.Spec)
		least, most int
	}{
		"start-first": {func(*pando.Spec) {}, 2, 3},
		"one home":    {func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 4} }, 1, 2},
		"surge": {func(s *pando.Spec) {
			s.Scale, s.Rollout.Surge = pando.Scale{Min: 6, Max: 6}, 3
		}, 6, 9},
		"stop-first": {func(s *pando.Spec) { s.Rollout.Order = pando.StopFirst }, 1, 2},
		"one writer": {func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 1} }, 0, 1},
		"volumes": {func(s *pando.Spec) {
			s.Volumes = []pando.Volume{{Name: "data", Path: "/data"}}
		}, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			tb := decidetest.New(t)
			tb.Deploy(1, c.change)
			for range 4 {
				tb.Settle()
				tb.Run()
				tb.Now = tb.Now.Add(2 * time.Second)
			}
			tb.Settle()
			former := map[pando.InstanceID]bool{}
			for _, i := range tb.W.Of(web) {
				former[i.ID] = true
			}
			wanted := tb.Count(pando.PhaseInRotation)
			restart(tb, "")
			if least, most := tb.SettleRestart(); least < c.least || most > c.most {
				t.Errorf("%d to %d instances served, want %d to %d", least, most, c.least, c.most)
			}
			for _, i := range tb.W.Of(web) {
				if former[i.ID] && i.Capacity() {
					t.Errorf("%s stays", i.ID)
				}
			}
			if n := tb.Count(pando.PhaseInRotation); n != wanted || len(tb.W.Revisions[web]) != 1 {
				t.Errorf("%d of %d in rotation, of %d revisions", n, wanted, len(tb.W.Revisions[web]))
			}
		})
	}
}

func TestARestartOfOneInstanceLeavesTheOthers(t *testing.T) {
	tb := decidetest.Serving(t)
	all := tb.W.Of(web)
	restart(tb, all[0].ID)
	tb.SettleRestart()
	tb.Run()
	left := map[pando.InstanceID]bool{}
	for _, i := range tb.W.Of(web) {
		left[i.ID] = i.Capacity()
	}
	if left[all[0].ID] || !left[all[1].ID] || tb.Count(pando.PhaseInRotation) != 2 {
		t.Errorf("the instances are %v", left)
	}
}

// A replacement that fails again and again is named with the way out, in the reason of the service
// and of the instance that waits for it. The instance serves meanwhile.
func TestAReplacementThatFailsIsNamed(t *testing.T) {
	for want, begin := range map[string]func(*decidetest.Table){
		"`pando restart web --cancel`": func(tb *decidetest.Table) { restart(tb, "") },
		"`pando hosts undrain h1`":     func(tb *decidetest.Table) { tb.Mark("h1", true) },
	} {
		tb := decidetest.Serving(t)
		tb.Members("h1", "h2")
		tb.Put(pando.Host{Name: "h2"})
		tb.Now = tb.Now.Add(time.Minute)
		tb.Settle()
		former := tb.W.Of(web)
		begin(tb)
		c := &status.Reader{Mirror: &mirror.Mirror{World: tb.W}}
		for n := range 4 {
			tb.Settle()
			for _, i := range tb.W.Of(web) {
				if i.ID != former[0].ID && i.ID != former[1].ID {
					tb.Fail(i, 1)
				}
			}
			tb.Settle()
			svc := tb.W.Services[web].V
			named := strings.Contains(svc.Reason, decide.ReplacementFails) && strings.Contains(svc.Reason, want)
			st, _ := c.Of(web)
			shown := strings.Contains(st.Instances[0].Waits, want)
			failed := n > 0 || strings.Contains(want, "undrain") // which starts two at a time
			if named != failed || shown != failed || svc.Phase != pando.ServiceServing {
				t.Errorf("%s: after %d failures it is %s: %s; %s", want, n+1, svc.Phase, svc.Reason,
					st.Instances[0].Waits)
			}
			tb.Now = tb.Now.Add(time.Minute)
		}
		if strings.HasPrefix(want, "`pando restart") {
			svc := tb.W.Services[web].V
			svc.Renew = nil
			tb.Put(svc)
			tb.Settle()
			if r := tb.W.Services[web].V.Reason; strings.Contains(r, decide.ReplacementFails) {
				t.Errorf("after the end of the restart: %s", r)
			}
		}
	}
}
