package control

import (
	"strings"
	"testing"

	"pando.run/pando"
)

// lose ends the lease of a host, as the store does when its agent is silent.
func (tb *table) lose(h pando.HostName) {
	tb.rev++
	tb.commit(pando.Txn{Delete: []pando.Key{pando.HostKey(h)}}, tb.rev)
}

// on counts the instances of web on a host in a phase.
func (tb *table) on(h pando.HostName, p pando.Phase) (n int) {
	for _, i := range tb.w.Of(web) {
		if i.Host == h && i.Phase == p {
			n++
		}
	}
	return n
}

// lost returns the reasons of the host-lost decisions.
func (tb *table) lost() (out []string) {
	for _, v := range tb.w.DecisionsOf(web) {
		if v.Kind == pando.DecidedHostLost {
			out = append(out, v.Reason)
		}
	}
	return out
}

func served(t *testing.T, change func(*pando.Spec)) *table {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h2"})
	tb.deploy(1, change)
	tb.settle()
	tb.run()
	tb.settle()
	if n := tb.on("h1", pando.PhaseInRotation); n != 2 || tb.w.Services[web].V.Home != "h1" {
		t.Fatalf("%d in rotation at home, which is %q", n, tb.w.Services[web].V.Home)
	}
	return tb
}

func TestAServiceWithoutStateMovesWhenItsHomeIsAwayAndStaysThere(t *testing.T) {
	tb := served(t, nil)
	tb.lose("h1")
	tb.settle()
	if n := tb.on("h2", pando.PhasePlaced); n != 2 || tb.w.Services[web].V.Home != "h2" {
		t.Fatalf("%d placed on h2; home %q", n, tb.w.Services[web].V.Home)
	}
	all := tb.lost()
	if len(all) != 1 || !strings.Contains(all[0], "moves to h2, because h1, its home, is away") {
		t.Errorf("on record is %q", all)
	}
	// The instances on h1 continue until those on h2 serve.
	tb.put(pando.Host{Name: "h1"})
	tb.settle()
	if n := tb.on("h1", pando.PhaseInRotation); n != 2 {
		t.Errorf("%d of 2 serve on h1 while none serves on h2", n)
	}
	tb.run()
	tb.settle()
	if n := tb.on("h1", pando.PhaseDraining); n != 2 {
		t.Errorf("%d of 2 leave h1 once h2 serves", n)
	}
	tb.run()
	tb.settle()
	if n := tb.on("h2", pando.PhaseInRotation); n != 2 || len(tb.w.Of(web)) != 2 {
		t.Errorf("%d of %d serve on h2; want both, each once", n, len(tb.w.Of(web)))
	}
}

func TestAServiceWithStateWaitsForItsHome(t *testing.T) {
	typed := func(s *pando.Spec) { s.State = map[string]pando.StateType{"total": "counter"} }
	pushed := func(tb *table) { tb.put(pando.StateHead{Service: web, Host: "h1"}) }
	for name, end := range map[string]func() *table{
		"is away": func() *table { tb := served(t, typed); tb.lose("h1"); return tb },
		"leaves": func() *table {
			tb := served(t, typed)
			pushed(tb)
			tb.put(pando.Host{Name: "h1", Leaving: true})
			return tb
		},
		// Its spec names no path.
		"away": func() *table { tb := served(t, nil); pushed(tb); tb.lose("h1"); return tb },
	} {
		tb := end()
		tb.settle()
		tb.now = tb.now.Add(1e9)
		tb.settle()
		if n := tb.on("h2", pando.PhasePlaced); n != 0 {
			t.Errorf("%s: %d placed without the state", name, n)
		}
		svc := tb.w.Services[web].V
		if svc.Phase != pando.ServiceDegraded || !strings.Contains(svc.Reason, "its state is on h1") ||
			!strings.Contains(svc.Reason, name) {
			t.Errorf("%s: it is %s: %s", name, svc.Phase, svc.Reason)
		}
		if all := tb.lost(); len(all) != 1 ||
			!strings.Contains(all[0], "nothing is started in its place: its state is on h1") {
			t.Errorf("%s: on record is %q", name, all)
		}
		tb.put(pando.Host{Name: "h1"})
		if name == "leaves" {
			tb.run()
			tb.settle()
			tb.run()
		}
		tb.settle()
		n := tb.on("h1", pando.PhaseInRotation)
		if n != 2 || len(tb.w.Of(web)) != 2 || tb.w.Services[web].V.Phase != pando.ServiceServing {
			t.Errorf("%s: after its return %d of %d serve, %s",
				name, n, len(tb.w.Of(web)), tb.w.Services[web].V.Phase)
		}
	}
}

func TestNothingIsStartedWhereNoHostTakesInstances(t *testing.T) {
	tb := served(t, nil)
	tb.put(pando.Host{Name: "h1", Leaving: true}, pando.Host{Name: "h2", Leaving: true})
	tb.settle()
	tb.run()
	tb.settle()
	if n := len(tb.w.Of(web)); n != 0 {
		t.Errorf("%d instances are there", n)
	}
	asked := len(tb.w.Intents)
	tb.now = tb.now.Add(1e9)
	tb.settle()
	if n := len(tb.w.Intents) - asked; n != 0 {
		t.Errorf("%d more are asked for", n)
	}
}

func TestAServiceMovesFromAHostThatLeaves(t *testing.T) {
	tb := served(t, nil)
	tb.put(pando.Host{Name: "h1", Leaving: true})
	tb.settle()
	if n, m := tb.on("h2", pando.PhasePlaced), tb.on("h1", pando.PhaseDraining); n != 2 || m != 2 {
		t.Fatalf("%d placed on h2, %d leave h1", n, m)
	}
	tb.run()
	tb.settle()
	if n := tb.on("h2", pando.PhaseInRotation); n != 2 || len(tb.w.Of(web)) != 2 {
		t.Errorf("%d of %d serve on h2", n, len(tb.w.Of(web)))
	}
}

func TestARemovedServiceDoesNotWaitForAHostThatIsAway(t *testing.T) {
	tb := served(t, func(s *pando.Spec) { s.State = map[string]pando.StateType{"total": "counter"} })
	tb.put(pando.StateHead{Service: web, Host: "h1"})
	tb.lose("h1")
	tb.settle()
	svc := tb.w.Services[web].V
	svc.Removing, svc.Purge = true, true
	tb.put(svc)
	tb.settle()
	if _, there := tb.w.Services[web]; there || len(tb.w.Of(web)) != 0 || len(tb.w.Heads) != 0 {
		t.Errorf("the service is there: %t; %d instances, %d heads",
			there, len(tb.w.Of(web)), len(tb.w.Heads))
	}
}
