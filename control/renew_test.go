package control

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// restart marks the instances of the table's service that leave, as Restart does.
func (tb *table) restart(only pando.InstanceID) {
	tb.t.Helper()
	c := &operators{view: &view{world: tb.w}}
	svc := tb.w.Services[web].V
	if _, err := c.beginRestart(&svc, only, pando.Asker{}); err != nil {
		tb.t.Fatal(err)
	}
	tb.put(svc)
}

// settleRestart decides and runs until the restart is over. It returns the least number in rotation
// and the largest number of instances that count meanwhile.
func (tb *table) settleRestart() (least, most int) {
	tb.t.Helper()
	least = tb.count(pando.PhaseInRotation)
	for range 40 {
		tb.settle()
		in, all := tb.count(pando.PhaseInRotation), 0
		for _, i := range tb.w.Of(web) {
			if i.Capacity() {
				all++
			}
		}
		least, most = min(least, in), max(most, all)
		if tb.w.Services[web].V.Renew == nil {
			return least, most
		}
		tb.now = tb.now.Add(2 * time.Second)
		tb.run()
	}
	tb.t.Fatalf("the restart does not end: %+v", tb.w.Services[web].V)
	return 0, 0
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
			tb := newTable(t)
			tb.deploy(1, c.change)
			for range 4 {
				tb.settle()
				tb.run()
				tb.now = tb.now.Add(2 * time.Second)
			}
			tb.settle()
			former := map[pando.InstanceID]bool{}
			for _, i := range tb.w.Of(web) {
				former[i.ID] = true
			}
			wanted := tb.count(pando.PhaseInRotation)
			tb.restart("")
			if least, most := tb.settleRestart(); least < c.least || most > c.most {
				t.Errorf("%d to %d instances served, want %d to %d", least, most, c.least, c.most)
			}
			for _, i := range tb.w.Of(web) {
				if former[i.ID] && i.Capacity() {
					t.Errorf("%s stays", i.ID)
				}
			}
			if n := tb.count(pando.PhaseInRotation); n != wanted || len(tb.w.Revisions[web]) != 1 {
				t.Errorf("%d of %d in rotation, of %d revisions", n, wanted, len(tb.w.Revisions[web]))
			}
		})
	}
}

func TestARestartOfOneInstanceLeavesTheOthers(t *testing.T) {
	tb := serving(t)
	all := tb.w.Of(web)
	tb.restart(all[0].ID)
	tb.settleRestart()
	tb.run()
	left := map[pando.InstanceID]bool{}
	for _, i := range tb.w.Of(web) {
		left[i.ID] = i.Capacity()
	}
	if left[all[0].ID] || !left[all[1].ID] || tb.count(pando.PhaseInRotation) != 2 {
		t.Errorf("the instances are %v", left)
	}
}

// A replacement that fails again and again is named with the way out, in the reason of the service
// and of the instance that waits for it. The instance serves meanwhile.
func TestAReplacementThatFailsIsNamed(t *testing.T) {
	for want, begin := range map[string]func(*table){
		"`pando restart web --cancel`": func(tb *table) { tb.restart("") },
		"`pando hosts undrain h1`":     func(tb *table) { tb.mark("h1", true) },
	} {
		tb := serving(t)
		tb.members("h1", "h2")
		tb.put(pando.Host{Name: "h2"})
		tb.now = tb.now.Add(time.Minute)
		tb.settle()
		former := tb.w.Of(web)
		begin(tb)
		c := &view{world: tb.w}
		for n := range 4 {
			tb.settle()
			for _, i := range tb.w.Of(web) {
				if i.ID != former[0].ID && i.ID != former[1].ID {
					tb.fail(i, 1)
				}
			}
			tb.settle()
			svc := tb.w.Services[web].V
			named := strings.Contains(svc.Reason, decide.ReplacementFails) && strings.Contains(svc.Reason, want)
			st, _ := c.status(web)
			shown := strings.Contains(st.Instances[0].Waits, want)
			failed := n > 0 || strings.Contains(want, "undrain") // which starts two at a time
			if named != failed || shown != failed || svc.Phase != pando.ServiceServing {
				t.Errorf("%s: after %d failures it is %s: %s; %s", want, n+1, svc.Phase, svc.Reason,
					st.Instances[0].Waits)
			}
			tb.now = tb.now.Add(time.Minute)
		}
		if strings.HasPrefix(want, "`pando restart") {
			svc := tb.w.Services[web].V
			svc.Renew = nil
			tb.put(svc)
			tb.settle()
			if r := tb.w.Services[web].V.Reason; strings.Contains(r, decide.ReplacementFails) {
				t.Errorf("after the end of the restart: %s", r)
			}
		}
	}
}
