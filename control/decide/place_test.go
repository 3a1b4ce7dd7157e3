package decide_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

func TestASpreadServiceRunsOnEveryHost(t *testing.T) {
	tb := decidetest.Spread(t, 6, nil)
	if got := tb.Hosts(); got != [3]int{2, 2, 2} || tb.W.Services[web].V.Home != "" {
		t.Errorf("%v in rotation; its home is %q", got, tb.W.Services[web].V.Home)
	}
	tb = decidetest.Spread(t, 2, func(s *pando.Spec) { s.Scale.Warm = 2 })
	warm := 0
	for _, i := range tb.W.Of(web) {
		if i.Phase == pando.PhaseWarm && tb.On(i.Host, pando.PhaseInRotation) == 0 {
			warm++
		}
	}
	if warm == 0 || len(tb.W.Of(web)) != 4 {
		t.Errorf("no reserve is on the third host: %v", tb.W.Of(web))
	}
}

// Only the seats of a lost host are replaced, once, and no more than max count at any time.
func TestOnlyTheInstancesOfALostHostAreReplaced(t *testing.T) {
	tb := decidetest.Spread(t, 3, nil)
	before := tb.W.Of(web)
	tb.Lose("h2")
	tb.Settle()
	tb.Run()
	tb.Settle()
	for _, i := range before {
		now := tb.W.Instances[i.ID].V
		if (i.Host == "h2") != (now.Phase != pando.PhaseInRotation) {
			t.Errorf("%s on %s is %s", i.ID, i.Host, now.Phase)
		}
	}
	if got := tb.Hosts(); got[0]+got[2] != 3 {
		t.Errorf("%v in rotation after the loss of h2, want 3", got)
	}
	tb.Put(pando.Host{Name: "h2", Tunnel: true})
	tb.Settle()
	tb.Run()
	tb.Settle()
	if got := tb.Hosts(); got[0]+got[2] != 3 || got[1] != 0 || len(tb.W.Of(web)) != 3 {
		t.Errorf("%v in rotation of %d after its return, want 3", got, len(tb.W.Of(web)))
	}
}

// A lost host is not given up before another one can take its place.
func TestTheLastHostThatFitsIsNotGivenUp(t *testing.T) {
	tb := decidetest.Spread(t, 2, func(s *pando.Spec) { s.Place.Only = "zone=b" })
	if got := tb.Hosts(); got != [3]int{0, 2, 0} {
		t.Fatalf("%v in rotation, want both in zone b", got)
	}
	tb.Lose("h2")
	tb.Settle()
	svc := tb.W.Services[web].V
	if n := tb.On("h2", pando.PhaseInRotation); n != 2 || svc.Phase != pando.ServiceDegraded ||
		!strings.Contains(svc.Reason, "pando up --label") {
		t.Errorf("%d in rotation; it is %s: %s", n, svc.Phase, svc.Reason)
	}
	tb.Put(pando.Host{Name: "h2", Labels: "zone=b", Tunnel: true})
	tb.Settle()
	if svc := tb.W.Services[web].V; svc.Phase != pando.ServiceServing || len(tb.W.Of(web)) != 2 {
		t.Errorf("after its return it is %s with %d instances", svc.Phase, len(tb.W.Of(web)))
	}
}

func TestASpreadServiceLeavesOneHost(t *testing.T) {
	tb := decidetest.Spread(t, 3, nil)
	tb.Put(pando.Host{Name: "h3", Leaving: true})
	for range 3 {
		tb.Settle()
		tb.Run()
	}
	if got := tb.Hosts(); got[0]+got[1] != 3 || got[2] != 0 || len(tb.W.Of(web)) != 3 {
		t.Errorf("%v in rotation of %d, want 3 beside h3", got, len(tb.W.Of(web)))
	}
}

func TestASpreadServiceIsRemovedWithoutALostHost(t *testing.T) {
	tb := decidetest.Spread(t, 3, nil)
	tb.Lose("h2")
	tb.Settle()
	tb.Remove()
	if _, there := tb.W.Services[web]; there || len(tb.W.Of(web)) != 0 {
		t.Errorf("there: %t, with %d instances", there, len(tb.W.Of(web)))
	}
}

// Each rollout of a service that spreads leaves it exactly even. What leaves does not count as what
// stays.
func TestARolloutLeavesASpreadServiceEven(t *testing.T) {
	for _, hosts := range []int{2, 3} {
		for _, least := range []int{2, 3, 4, 6} {
			for _, rule := range []string{pando.SpreadHost, "zone"} {
				tb := decidetest.Spread(t, least, func(s *pando.Spec) { s.Place.Spread = rule })
				tb.Put(pando.Host{Name: "h1", Labels: "zone=a", Tunnel: true},
					pando.Host{Name: "h2", Labels: "zone=b", Tunnel: true},
					pando.Host{Name: "h3", Labels: "zone=c", Tunnel: true})
				if hosts == 2 {
					tb.Lose("h3")
				}
				for revision := 2; revision <= 6; revision++ {
					tb.Rolled(revision, func(s *pando.Spec) {
						s.Scale, s.Place.Spread = pando.Scale{Min: least, Max: 2 * least}, rule
						s.Rollout.Surge = 1 + revision%2
					})
					got := tb.Hosts()
					there := got[:hosts]
					if slices.Max(there)-slices.Min(there) > 1 || got[0]+got[1]+got[2] != least {
						t.Errorf("%d instances on %d hosts, spread by %s: %v after revision %d",
							least, hosts, rule, got, revision)
					}
				}
			}
		}
	}
}

// A service with a home that spreads from now on is even after the first rollout.
func TestAHomeSpreadsEvenly(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h1", Tunnel: true}, pando.Host{Name: "h2", Tunnel: true})
	tb.Deploy(1, nil)
	tb.Settle()
	tb.Run()
	tb.Settle()
	tb.Rolled(2, func(s *pando.Spec) { s.Place.Spread = pando.SpreadHost })
	if got := tb.Hosts(); got != [3]int{1, 1, 0} {
		t.Errorf("%v in rotation", got)
	}
}

// While the counts differ by two, one instance at a time moves: another one serves before it leaves.
// A host that has just come gets none.
func TestASpreadServiceBecomesEven(t *testing.T) {
	for _, most := range []int{6, 12} { // also with all that it may have
		tb := decidetest.Spread(t, 6, func(s *pando.Spec) { s.Scale.Max = most })
		tb.Lose("h2")
		for range 5 {
			tb.Settle()
			tb.Run()
		}
		tb.Put(pando.Host{Name: "h2", Tunnel: true})
		tb.Now = tb.Now.Add(decide.EvenAfter - time.Second)
		tb.Settle()
		if got := tb.Hosts(); got != [3]int{3, 0, 3} || len(tb.W.Of(web)) != 6 {
			t.Fatalf("%v in rotation of %d, before the host has settled", got, len(tb.W.Of(web)))
		}
		for range 20 {
			tb.Now = tb.Now.Add(decide.EvenLook)
			tb.Settle()
			tb.Run()
			tb.Settle()
			got := tb.Hosts()
			if sum := got[0] + got[1] + got[2]; sum < 6 || len(tb.W.Of(web)) > 7 {
				t.Fatalf("%v in rotation of %d", got, len(tb.W.Of(web)))
			}
		}
		if got := tb.Hosts(); got != [3]int{2, 2, 2} || len(tb.W.Of(web)) != 6 {
			t.Errorf("%v in rotation of %d, at most %d", got, len(tb.W.Of(web)), most)
		}
	}
}

// A claim from the reserve keeps the spread.
func TestAClaimKeepsTheSpread(t *testing.T) {
	tb := decidetest.Spread(t, 3, func(s *pando.Spec) { s.Scale.Max, s.Scale.Warm = 9, 3 })
	for range 3 {
		tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
		tb.Settle()
		tb.Run()
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	if got := tb.Hosts(); got != [3]int{2, 2, 2} {
		t.Errorf("%v in rotation", got)
	}
}

// Back to one host: the oldest instance decides where, and the others leave once that host serves.
func TestASpreadServiceComesTogether(t *testing.T) {
	tb := decidetest.Spread(t, 3, nil)
	tb.Deploy(2, func(s *pando.Spec) { s.Scale = pando.Scale{Min: 3, Max: 6} })
	for range 20 {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2e9)
	}
	tb.Settle()
	home := tb.W.Services[web].V.Home
	if n := tb.On(home, pando.PhaseInRotation); n != 3 || len(tb.W.Of(web)) != 3 {
		t.Errorf("%d of %d on %q: %v", n, len(tb.W.Of(web)), home, tb.Hosts())
	}
}

// A move would break connections, so a new rule moves a service only if nothing of it runs.
func TestARuleMovesNothingThatRuns(t *testing.T) {
	tb := decidetest.Served(t, nil)
	tb.Put(pando.Host{Name: "h2", Labels: "zone=b"})
	tb.Deploy(2, func(s *pando.Spec) { s.Place.Only = "zone=b" })
	step := func() {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2e9)
	}
	for range 5 {
		step()
	}
	if n := tb.On("h1", pando.PhaseInRotation); n != 2 || len(tb.W.Of(web)) != 2 {
		t.Errorf("%d of %d stay on h1", n, len(tb.W.Of(web)))
	}
	for _, i := range tb.W.Of(web) {
		tb.Fail(i, 1)
	}
	for range 20 {
		step()
	}
	tb.Settle()
	if n := tb.On("h2", pando.PhaseInRotation); n != 2 || len(tb.W.Of(web)) != 2 {
		t.Errorf("%d of %d on h2 after the end of all", n, len(tb.W.Of(web)))
	}
	if all := tb.Lost(); len(all) == 0 ||
		!strings.Contains(all[len(all)-1], "because h1, its home, lacks the label zone=b") {
		t.Errorf("on record is %q", all)
	}
}

// A state does not follow the rule: the service waits, with a reason.
func TestAServiceWithStateStaysWhereItsStateIs(t *testing.T) {
	state := map[string]pando.StateType{"total": "counter"}
	tb := decidetest.Served(t, func(s *pando.Spec) { s.State = state })
	tb.Put(pando.StateHead{Service: web, Host: "h1"}, pando.Host{Name: "h2", Labels: "zone=b"})
	tb.Deploy(2, func(s *pando.Spec) { s.State, s.Place.Only = state, "zone=b" })
	tb.Settle()
	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Settle()
	svc := tb.W.Services[web].V
	if n := tb.On("h2", pando.PhasePlaced); n != 0 ||
		!strings.Contains(svc.Reason, "its home is h1, which lacks the label zone=b") {
		t.Errorf("%d placed on h2; it is %s: %s", n, svc.Phase, svc.Reason)
	}
}

func TestAServiceStaysApartFromAnother(t *testing.T) {
	db := pando.DefaultService("db")
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h2"}, pando.Service{ServiceKey: db}, pando.Instance{
		ID: "db-1", Service: db, Host: "h1", Phase: pando.PhaseInRotation})
	apart := func(s *pando.Spec) { s.Place.Apart = "db" }
	tb.Deploy(1, apart)
	tb.Settle()
	if n := tb.On("h2", pando.PhasePlaced); n != 2 {
		t.Errorf("%d of 2 placed apart from db", n)
	}
	// The other service arrives where this one runs: nothing moves.
	second := pando.Instance{ID: "db-2", Service: db, Host: "h2", Phase: pando.PhaseInRotation}
	tb.Run()
	tb.Put(second)
	tb.Settle()
	if n := tb.On("h2", pando.PhaseInRotation); n != 2 {
		t.Errorf("%d of 2 stay beside db", n)
	}
}

func TestAServiceWaitsUntilTheOtherHasLeftAHost(t *testing.T) {
	db := pando.DefaultService("db")
	tb := decidetest.New(t)
	first := pando.Instance{ID: "db-1", Service: db, Host: "h1", Phase: pando.PhaseInRotation}
	tb.Put(pando.Service{ServiceKey: db}, first)
	tb.Deploy(1, func(s *pando.Spec) { s.Place.Apart = "db" })
	tb.Settle()
	if n := len(tb.W.Of(web)); n != 0 {
		t.Errorf("%d instances beside db", n)
	}
	_, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs)
	if wake.IsZero() {
		t.Error("it never looks again")
	}
	tb.Rev++
	tb.Commit(pando.Txn{Delete: []pando.Key{first.Key()}}, tb.Rev)
	tb.Settle()
	if n := tb.On("h1", pando.PhasePlaced); n != 2 {
		t.Errorf("%d of 2 placed after db has left", n)
	}
}

// A service waits for a label whose only host is away. Its reason names that host.
func TestAWaitForALabelNamesTheHostThatIsAway(t *testing.T) {
	tb := decidetest.New(t)
	tb.Members("h1", "h2")
	tb.Deploy(1, func(s *pando.Spec) { s.Place.Only = "zone=b" })
	tb.Settle()
	if why := tb.W.Services[web].V.Reason; !strings.Contains(why, "and h2 is away") {
		t.Errorf("it waits for %q", why)
	}
	tb.Put(pando.Host{Name: "h2", Labels: "zone=b", Tunnel: true})
	tb.Settle()
	if n := tb.On("h2", pando.PhasePlaced); n == 0 {
		t.Errorf("%+v", tb.W.Services[web].V)
	}
}
