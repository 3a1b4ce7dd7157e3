package control

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// group returns a table with a stateful service of three ordinals on three hosts, and hooks.
func group(t *testing.T) *table {
	tb := newTable(t)
	for _, h := range []pando.HostName{"h1", "h2", "h3"} {
		tb.put(pando.Host{Name: h, Tunnel: true, Ordinals: true})
	}
	tb.deploy(1, stateful)
	return tb
}

func stateful(s *pando.Spec) {
	s.Kind, s.Scale = pando.Stateful, pando.Scale{Min: 3}
	s.Place.Spread = pando.SpreadHost
	s.Volumes = []pando.Volume{{Name: "data", Path: "/data"}}
	s.Hooks = pando.Hooks{Bootstrap: []string{"first"}, Recover: []string{"position"}}
}

// formed returns a group in rotation.
func formedGroup(t *testing.T) *table {
	tb := group(t)
	for range 4 {
		tb.settle()
		tb.run()
	}
	tb.settle()
	return tb
}

// berths returns the ordinal, the host, the phase and the order of each instance.
func (tb *table) berths() string {
	var out [4]string
	for _, i := range tb.w.Of(web) {
		out[i.Ordinal] += fmt.Sprintf("%d %s %s %s", i.Ordinal, i.Host, i.Phase, i.Start)
	}
	return strings.Trim(strings.Join(out[1:], "; "), "; ")
}

func (tb *table) expect(want string) {
	tb.t.Helper()
	if got := tb.berths(); got != want {
		tb.t.Fatalf("got  %s\nwant %s", got, want)
	}
}

// crashAll ends every instance as a crash does.
func (tb *table) crashAll() {
	for _, i := range tb.w.Of(web) {
		tb.fail(i, 137)
	}
}

// report gives the ordinals that wait the position of their number in numbers.
func (tb *table) report(numbers ...int64) {
	for _, i := range tb.w.Of(web) {
		if i.Start == pando.StartRecover && numbers[i.Ordinal-1] >= 0 {
			i.Position = pando.Position{History: "h", Number: numbers[i.Ordinal-1]}.String()
			tb.put(i)
		}
	}
}

func TestAGroupFormsInOrder(t *testing.T) {
	tb := group(t)
	tb.settle()
	tb.expect("1 h1 placed bootstrap")
	tb.run()
	tb.settle()
	tb.expect("1 h1 in rotation bootstrap; 2 h2 placed join")
	tb.run()
	tb.settle()
	tb.run()
	tb.settle()
	tb.expect("1 h1 in rotation bootstrap; 2 h2 in rotation join; 3 h3 in rotation join")
	if svc := tb.w.Services[web].V; !svc.Roll.Formed || svc.Phase != pando.ServiceServing {
		t.Errorf("the service is %s: %+v", svc.Phase, svc.Roll)
	}
}

func TestACrashedOrdinalKeepsItsHost(t *testing.T) {
	tb := formedGroup(t)
	for _, i := range tb.w.Of(web) {
		if i.Ordinal == 2 {
			tb.fail(i, 137)
		}
	}
	tb.settle()
	tb.expect("1 h1 in rotation bootstrap; 2 h2 placed join; 3 h3 in rotation join")
}

// An ordinal that crashed first is on its way to join the others when these crash too. It ends, and
// takes part in the election.
func TestAStrayTakesPartInTheElection(t *testing.T) {
	tb := formedGroup(t)
	for ordinal := 1; ordinal <= 3; ordinal++ {
		for _, i := range tb.w.Of(web) {
			if i.Ordinal == ordinal {
				tb.fail(i, 137)
			}
		}
		if ordinal == 1 {
			tb.settle()
			tb.expect("1 h1 placed join; 2 h2 in rotation join; 3 h3 in rotation join")
		}
	}
	tb.settle()
	tb.expect("1 h1 draining join")
	tb.run()
	tb.settle()
	tb.expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
	tb.report(9, 7, 8)
	tb.settle()
	tb.expect("1 h1 placed bootstrap; 2 h2 placed recover; 3 h3 placed recover")
}

// With a quorum, the positions of two decide once the host of the third is away.
func TestAQuorumRecoversWithoutAHost(t *testing.T) {
	for quorum, want := range map[int]string{
		0: "1 h1 in rotation bootstrap; 2 h2 placed recover; 3 h3 placed recover",
		2: "1 h1 in rotation bootstrap; 2 h2 placed recover; 3 h3 placed bootstrap",
	} {
		tb := newTable(t)
		for _, h := range []pando.HostName{"h1", "h2", "h3"} {
			tb.put(pando.Host{Name: h, Tunnel: true, Ordinals: true})
		}
		tb.deploy(1, func(s *pando.Spec) {
			stateful(s)
			s.Hooks.Quorum = quorum
		})
		for range 4 {
			tb.settle()
			tb.run()
		}
		tb.settle()
		tb.rev++
		tb.commit(pando.Txn{Delete: []pando.Key{pando.Host{Name: "h1"}.Key()}}, tb.rev)
		for _, i := range tb.w.Of(web) {
			if i.Ordinal > 1 {
				tb.fail(i, 137)
			}
		}
		tb.settle()
		tb.report(-1, 7, 8)
		tb.settle()
		tb.expect(want)
	}
}

func TestAGroupRecoversFromTheNewest(t *testing.T) {
	tb := formedGroup(t)
	tb.crashAll()
	tb.settle()
	tb.expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
	tb.report(7, -1, 8)
	tb.settle()
	tb.expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
	if why := tb.w.Services[web].V.Reason; !strings.Contains(why, "web-1 is not reported yet") {
		t.Errorf("the service waits because %s", why)
	}
	tb.report(7, 9, 8)
	tb.settle()
	tb.expect("1 h1 placed recover; 2 h2 placed bootstrap; 3 h3 placed recover")
	tb.serve(2)
	tb.settle()
	tb.expect("1 h1 placed join; 2 h2 in rotation bootstrap; 3 h3 placed recover")
	tb.serve(1)
	tb.settle()
	tb.expect("1 h1 in rotation join; 2 h2 in rotation bootstrap; 3 h3 placed join")
}

// serve brings the instance of an ordinal into rotation.
func (tb *table) serve(ordinal int) {
	for _, i := range tb.w.Of(web) {
		if i.Ordinal == ordinal {
			i.Phase, i.Since = pando.PhaseInRotation, tb.now
			tb.put(i)
		}
	}
}

func TestAnOrdinalWaitsForItsHost(t *testing.T) {
	tb := formedGroup(t)
	tb.crashAll()
	tb.rev++
	tb.commit(pando.Txn{Delete: []pando.Key{pando.HostKey("h3")}}, tb.rev)
	tb.settle()
	tb.report(7, 6, -1)
	tb.settle()
	tb.expect("1 h1 placed recover; 2 h2 placed recover")
	svc := tb.w.Services[web].V
	if want := "its host h3 is away"; !strings.Contains(svc.Reason, want) ||
		!strings.Contains(svc.Reason, "--force-from") {
		t.Errorf("the service waits because %s", svc.Reason)
	}
	roll := *svc.Roll
	roll.Force = 1
	svc.Roll = &roll
	tb.put(svc)
	tb.settle()
	tb.expect("1 h1 placed bootstrap; 2 h2 placed recover")
	tb.serve(1)
	tb.settle()
	tb.expect("1 h1 in rotation bootstrap; 2 h2 placed join")
	if left := tb.w.Services[web].V.Roll.Force; left != 0 {
		t.Errorf("the forced bootstrap of %d is still asked for", left)
	}
}

func TestAGroupChangesAndEndsOneAtATime(t *testing.T) {
	tb := formedGroup(t)
	tb.deploy(2, stateful)
	leaving := func() (out []int) {
		for _, i := range tb.w.Of(web) {
			if i.Phase == pando.PhaseDraining {
				out = append(out, i.Ordinal)
			}
		}
		return out
	}
	var order []int
	for range 20 {
		tb.settle()
		now := leaving()
		if len(now) > 1 {
			t.Fatalf("%v leave at once", now)
		}
		order = append(order, now...)
		tb.run()
		tb.now = tb.now.Add(2e9)
	}
	if got := fmt.Sprint(order); got != "[1 2 3]" || tb.w.Services[web].V.Current != 2 {
		t.Errorf("the ordinals %s left, and revision %d serves", got, tb.w.Services[web].V.Current)
	}
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	order = nil
	for range 10 {
		tb.settleLoosely()
		order = append(order, leaving()...)
		tb.run()
	}
	if got := fmt.Sprint(order); got != "[3 2 1]" || len(tb.w.Services) != 0 {
		t.Errorf("the ordinals %s left, and %d services are there", got, len(tb.w.Services))
	}
	if kept := tb.w.Volumes[web].V.Roll; kept.Host(3) != "h3" || !kept.Formed {
		t.Errorf("of the volumes the store keeps %+v", kept)
	}
	tb.deploy(1, stateful)
	tb.settle()
	tb.expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
}

// settleLoosely decides until nothing is to be written, also after the service is gone.
func (tb *table) settleLoosely() {
	for range 50 {
		txn, _ := decide.Decide(tb.w, web, tb.now, tb.ids)
		if len(txn.Put)+len(txn.Delete) == 0 {
			return
		}
		tb.rev++
		tb.commit(txn, tb.rev)
	}
}

func TestAnOperatorNamesAnOrdinal(t *testing.T) {
	tb := formedGroup(t)
	svc := tb.w.Services[web].V
	for name, want := range map[string]int{"web-2": 3, "0": 1, "web-3": 0, "db-1": 0, "-1": 0} {
		if n, err := ordinal(tb.w, svc, name); n != want || (err == nil) != (want > 0) {
			t.Errorf("%s is ordinal %d (%v), want %d", name, n, err, want)
		}
	}
	plain := serving(t)
	_, err := ordinal(plain.w, plain.w.Services[web].V, "web-0")
	if err == nil || !strings.Contains(err.Error(), "kind: stateful") {
		t.Errorf("a service of equal instances: %v", err)
	}
}

func TestAHostWithOrdinalsIsNotRemoved(t *testing.T) {
	tb := formedGroup(t)
	err := removable(tb.w, pando.Member{Name: "h2"}, false, 0, false)
	if err == nil || !strings.Contains(err.Error(), "1 stateful services") {
		t.Errorf("the host of an ordinal's volumes may go: %v", err)
	}
	if err := removable(tb.w, pando.Member{Name: "h2"}, false, 0, true); err != nil {
		t.Errorf("with --force: %v", err)
	}
	if err := removable(tb.w, pando.Member{Name: "h9"}, false, 0, false); err != nil {
		t.Errorf("another host: %v", err)
	}
}

// The host with the volumes of a service is not removed by mistake, whether the service lives, was
// removed or spreads its instances. The refusal names the services.
func TestAHostWithVolumesIsNotRemoved(t *testing.T) {
	volumes := func(s *pando.Spec) {
		s.Volumes = []pando.Volume{{Name: "data", Path: "/data", Shared: true}}
	}
	tb := newTable(t)
	tb.put(pando.Host{Name: "h2"})
	tb.deploy(1, volumes)
	tb.settle()
	home := tb.w.Services[web].V.Home
	other := map[pando.HostName]pando.HostName{"h1": "h2", "h2": "h1"}[home]
	refused := func(h pando.HostName, want string) {
		t.Helper()
		err := removable(tb.w, pando.Member{Name: h}, false, 0, false)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("the removal of %s answers %v, want %q", h, err, want)
		}
	}
	refused(home, "the volumes of 1 services (web)")
	refused(other, "")
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	for range 10 {
		tb.settleLoosely()
		tb.run()
	}
	if len(tb.w.Services) != 0 {
		t.Fatal("the service is still there")
	}
	refused(home, "the volumes of 1 removed services (web)")
	refused(other, "")
}
