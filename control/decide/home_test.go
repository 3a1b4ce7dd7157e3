package decide_test

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

func TestAServiceWithoutStateMovesWhenItsHomeIsAwayAndStaysThere(t *testing.T) {
	tb := decidetest.Served(t, nil)
	tb.Lose("h1")
	tb.Settle()
	if n := tb.On("h2", pando.PhasePlaced); n != 2 || tb.W.Services[web].V.Home != "h2" {
		t.Fatalf("%d placed on h2; home %q", n, tb.W.Services[web].V.Home)
	}
	all := tb.Lost()
	if len(all) != 1 || !strings.Contains(all[0], "moves to h2, because h1, its home, is away") {
		t.Errorf("on record is %q", all)
	}
	// The instances on h1 continue until those on h2 serve.
	tb.Put(pando.Host{Name: "h1"})
	tb.Settle()
	if n := tb.On("h1", pando.PhaseInRotation); n != 2 {
		t.Errorf("%d of 2 serve on h1 while none serves on h2", n)
	}
	tb.Run()
	tb.Settle()
	if n := tb.On("h1", pando.PhaseDraining); n != 2 {
		t.Errorf("%d of 2 leave h1 once h2 serves", n)
	}
	tb.Run()
	tb.Settle()
	if n := tb.On("h2", pando.PhaseInRotation); n != 2 || len(tb.W.Of(web)) != 2 {
		t.Errorf("%d of %d serve on h2; want both, each once", n, len(tb.W.Of(web)))
	}
}

func TestAServiceWithStateWaitsForItsHome(t *testing.T) {
	typed := func(s *pando.Spec) { s.State = map[string]pando.StateType{"total": "counter"} }
	pushed := func(tb *decidetest.Table) { tb.Put(pando.StateHead{Service: web, Host: "h1"}) }
	for name, end := range map[string]func() *decidetest.Table{
		"is away": func() *decidetest.Table { tb := decidetest.Served(t, typed); tb.Lose("h1"); return tb },
		"leaves": func() *decidetest.Table {
			tb := decidetest.Served(t, typed)
			pushed(tb)
			tb.Put(pando.Host{Name: "h1", Leaving: true})
			return tb
		},
		// Its spec names no path.
		"away": func() *decidetest.Table { tb := decidetest.Served(t, nil); pushed(tb); tb.Lose("h1"); return tb },
	} {
		tb := end()
		tb.Settle()
		tb.Now = tb.Now.Add(1e9)
		tb.Settle()
		if n := tb.On("h2", pando.PhasePlaced); n != 0 {
			t.Errorf("%s: %d placed without the state", name, n)
		}
		svc := tb.W.Services[web].V
		if svc.Phase != pando.ServiceDegraded || !strings.Contains(svc.Reason, "its state is on h1") ||
			!strings.Contains(svc.Reason, name) {
			t.Errorf("%s: it is %s: %s", name, svc.Phase, svc.Reason)
		}
		if all := tb.Lost(); len(all) != 1 ||
			!strings.Contains(all[0], "nothing is started in its place: its state is on h1") {
			t.Errorf("%s: on record is %q", name, all)
		}
		tb.Put(pando.Host{Name: "h1"})
		if name == "leaves" {
			tb.Run()
			tb.Settle()
			tb.Run()
		}
		tb.Settle()
		n := tb.On("h1", pando.PhaseInRotation)
		if n != 2 || len(tb.W.Of(web)) != 2 || tb.W.Services[web].V.Phase != pando.ServiceServing {
			t.Errorf("%s: after its return %d of %d serve, %s",
				name, n, len(tb.W.Of(web)), tb.W.Services[web].V.Phase)
		}
	}
}

func TestNothingIsStartedWhereNoHostTakesInstances(t *testing.T) {
	tb := decidetest.Served(t, nil)
	tb.Put(pando.Host{Name: "h1", Leaving: true}, pando.Host{Name: "h2", Leaving: true})
	tb.Settle()
	tb.Run()
	tb.Settle()
	if n := len(tb.W.Of(web)); n != 0 {
		t.Errorf("%d instances are there", n)
	}
	asked := len(tb.W.Intents)
	tb.Now = tb.Now.Add(1e9)
	tb.Settle()
	if n := len(tb.W.Intents) - asked; n != 0 {
		t.Errorf("%d more are asked for", n)
	}
}

func TestAServiceMovesFromAHostThatLeaves(t *testing.T) {
	tb := decidetest.Served(t, nil)
	tb.Put(pando.Host{Name: "h1", Leaving: true})
	tb.Settle()
	if n, m := tb.On("h2", pando.PhasePlaced), tb.On("h1", pando.PhaseDraining); n != 2 || m != 2 {
		t.Fatalf("%d placed on h2, %d leave h1", n, m)
	}
	tb.Run()
	tb.Settle()
	if n := tb.On("h2", pando.PhaseInRotation); n != 2 || len(tb.W.Of(web)) != 2 {
		t.Errorf("%d of %d serve on h2", n, len(tb.W.Of(web)))
	}
}

func TestARemovedServiceDoesNotWaitForAHostThatIsAway(t *testing.T) {
	tb := decidetest.Served(t, func(s *pando.Spec) { s.State = map[string]pando.StateType{"total": "counter"} })
	tb.Put(pando.StateHead{Service: web, Host: "h1"})
	tb.Lose("h1")
	tb.Settle()
	svc := tb.W.Services[web].V
	svc.Removing, svc.Purge = true, true
	tb.Put(svc)
	tb.Settle()
	if _, there := tb.W.Services[web]; there || len(tb.W.Of(web)) != 0 || len(tb.W.Heads) != 0 {
		t.Errorf("the service is there: %t; %d instances, %d heads",
			there, len(tb.W.Of(web)), len(tb.W.Heads))
	}
}
