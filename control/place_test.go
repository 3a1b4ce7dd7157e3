package control

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/driver/wall"
)

// spread returns a table with the service web in rotation, spread over three hosts.
func spread(t *testing.T, least int, change func(*pando.Spec)) *table {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true},
		pando.Host{Name: "h2", Labels: "zone=b", Tunnel: true})
	tb.deploy(1, func(s *pando.Spec) {
		s.Scale, s.Place.Spread = pando.Scale{Min: least, Max: 2 * least}, pando.SpreadHost
		if change != nil {
			change(s)
		}
	})
	for range 3 {
		tb.settle()
		tb.run()
	}
	tb.settle()
	return tb
}

// hosts returns the number of web's instances in rotation on h1, h2 and h3.
func (tb *table) hosts() (out [3]int) {
	for n, h := range []pando.HostName{"h1", "h2", "h3"} {
		out[n] = tb.on(h, pando.PhaseInRotation)
	}
	return out
}

func TestASpreadServiceRunsOnEveryHost(t *testing.T) {
	tb := spread(t, 6, nil)
	if got := tb.hosts(); got != [3]int{2, 2, 2} || tb.w.Services[web].V.Home != "" {
		t.Errorf("%v in rotation; its home is %q", got, tb.w.Services[web].V.Home)
	}
	tb = spread(t, 2, func(s *pando.Spec) { s.Scale.Warm = 2 })
	warm := 0
	for _, i := range tb.w.Of(web) {
		if i.Phase == pando.PhaseWarm && tb.on(i.Host, pando.PhaseInRotation) == 0 {
			warm++
		}
	}
	if warm == 0 || len(tb.w.Of(web)) != 4 {
		t.Errorf("no reserve is on the third host: %v", tb.w.Of(web))
	}
}

// Only the seats of a lost host are replaced, once, and no more than max count at any time.
func TestOnlyTheInstancesOfALostHostAreReplaced(t *testing.T) {
	tb := spread(t, 3, nil)
	before := tb.w.Of(web)
	tb.lose("h2")
	tb.settle()
	tb.run()
	tb.settle()
	for _, i := range before {
		now := tb.w.Instances[i.ID].V
		if (i.Host == "h2") != (now.Phase != pando.PhaseInRotation) {
			t.Errorf("%s on %s is %s", i.ID, i.Host, now.Phase)
		}
	}
	if got := tb.hosts(); got[0]+got[2] != 3 {
		t.Errorf("%v in rotation after the loss of h2, want 3", got)
	}
	tb.put(pando.Host{Name: "h2", Tunnel: true})
	tb.settle()
	tb.run()
	tb.settle()
	if got := tb.hosts(); got[0]+got[2] != 3 || got[1] != 0 || len(tb.w.Of(web)) != 3 {
		t.Errorf("%v in rotation of %d after its return, want 3", got, len(tb.w.Of(web)))
	}
}

// A lost host is not given up before another one can take its place.
func TestTheLastHostThatFitsIsNotGivenUp(t *testing.T) {
	tb := spread(t, 2, func(s *pando.Spec) { s.Place.Only = "zone=b" })
	if got := tb.hosts(); got != [3]int{0, 2, 0} {
		t.Fatalf("%v in rotation, want both in zone b", got)
	}
	tb.lose("h2")
	tb.settle()
	svc := tb.w.Services[web].V
	if n := tb.on("h2", pando.PhaseInRotation); n != 2 || svc.Phase != pando.ServiceDegraded ||
		!strings.Contains(svc.Reason, "pando up --label") {
		t.Errorf("%d in rotation; it is %s: %s", n, svc.Phase, svc.Reason)
	}
	tb.put(pando.Host{Name: "h2", Labels: "zone=b", Tunnel: true})
	tb.settle()
	if svc := tb.w.Services[web].V; svc.Phase != pando.ServiceServing || len(tb.w.Of(web)) != 2 {
		t.Errorf("after its return it is %s with %d instances", svc.Phase, len(tb.w.Of(web)))
	}
}

func TestASpreadServiceLeavesOneHost(t *testing.T) {
	tb := spread(t, 3, nil)
	tb.put(pando.Host{Name: "h3", Leaving: true})
	for range 3 {
		tb.settle()
		tb.run()
	}
	if got := tb.hosts(); got[0]+got[1] != 3 || got[2] != 0 || len(tb.w.Of(web)) != 3 {
		t.Errorf("%v in rotation of %d, want 3 beside h3", got, len(tb.w.Of(web)))
	}
}

func TestASpreadServiceIsRemovedWithoutALostHost(t *testing.T) {
	tb := spread(t, 3, nil)
	tb.lose("h2")
	tb.settle()
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	tb.settle()
	tb.run()
	tb.settle()
	if _, there := tb.w.Services[web]; there || len(tb.w.Of(web)) != 0 {
		t.Errorf("there: %t, with %d instances", there, len(tb.w.Of(web)))
	}
}

// rolled deploys a revision and lets it take over.
func (tb *table) rolled(number int, change func(*pando.Spec)) {
	tb.t.Helper()
	tb.deploy(number, change)
	for range 60 {
		tb.settle()
		tb.run()
		if tb.w.Services[web].V.Current == number {
			return // before anything evens the spread afterwards
		}
		tb.now = tb.now.Add(2 * time.Second)
	}
	tb.t.Fatalf("revision %d is current, want %d", tb.w.Services[web].V.Current, number)
}

// Each rollout of a service that spreads leaves it exactly even. What leaves does not count as what
// stays.
func TestARolloutLeavesASpreadServiceEven(t *testing.T) {
	for _, hosts := range []int{2, 3} {
		for _, least := range []int{2, 3, 4, 6} {
			for _, rule := range []string{pando.SpreadHost, "zone"} {
				tb := spread(t, least, func(s *pando.Spec) { s.Place.Spread = rule })
				tb.put(pando.Host{Name: "h1", Labels: "zone=a", Tunnel: true},
					pando.Host{Name: "h2", Labels: "zone=b", Tunnel: true},
					pando.Host{Name: "h3", Labels: "zone=c", Tunnel: true})
				if hosts == 2 {
					tb.lose("h3")
				}
				for revision := 2; revision <= 6; revision++ {
					tb.rolled(revision, func(s *pando.Spec) {
						s.Scale, s.Place.Spread = pando.Scale{Min: least, Max: 2 * least}, rule
						s.Rollout.Surge = 1 + revision%2
					})
					got := tb.hosts()
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
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1", Tunnel: true}, pando.Host{Name: "h2", Tunnel: true})
	tb.deploy(1, nil)
	tb.settle()
	tb.run()
	tb.settle()
	tb.rolled(2, func(s *pando.Spec) { s.Place.Spread = pando.SpreadHost })
	if got := tb.hosts(); got != [3]int{1, 1, 0} {
		t.Errorf("%v in rotation", got)
	}
}

// While the counts differ by two, one instance at a time moves: another one serves before it leaves.
// A host that has just come gets none.
func TestASpreadServiceBecomesEven(t *testing.T) {
	for _, most := range []int{6, 12} { // also with all that it may have
		tb := spread(t, 6, func(s *pando.Spec) { s.Scale.Max = most })
		tb.lose("h2")
		for range 5 {
			tb.settle()
			tb.run()
		}
		tb.put(pando.Host{Name: "h2", Tunnel: true})
		tb.now = tb.now.Add(decide.EvenAfter - time.Second)
		tb.settle()
		if got := tb.hosts(); got != [3]int{3, 0, 3} || len(tb.w.Of(web)) != 6 {
			t.Fatalf("%v in rotation of %d, before the host has settled", got, len(tb.w.Of(web)))
		}
		for range 20 {
			tb.now = tb.now.Add(decide.EvenLook)
			tb.settle()
			tb.run()
			tb.settle()
			got := tb.hosts()
			if sum := got[0] + got[1] + got[2]; sum < 6 || len(tb.w.Of(web)) > 7 {
				t.Fatalf("%v in rotation of %d", got, len(tb.w.Of(web)))
			}
		}
		if got := tb.hosts(); got != [3]int{2, 2, 2} || len(tb.w.Of(web)) != 6 {
			t.Errorf("%v in rotation of %d, at most %d", got, len(tb.w.Of(web)), most)
		}
	}
}

// A claim from the reserve keeps the spread.
func TestAClaimKeepsTheSpread(t *testing.T) {
	tb := spread(t, 3, func(s *pando.Spec) { s.Scale.Max, s.Scale.Warm = 9, 3 })
	for range 3 {
		tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
		tb.settle()
		tb.run()
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(2 * time.Second)
	}
	if got := tb.hosts(); got != [3]int{2, 2, 2} {
		t.Errorf("%v in rotation", got)
	}
}

// Back to one host: the oldest instance decides where, and the others leave once that host serves.
func TestASpreadServiceComesTogether(t *testing.T) {
	tb := spread(t, 3, nil)
	tb.deploy(2, func(s *pando.Spec) { s.Scale = pando.Scale{Min: 3, Max: 6} })
	for range 20 {
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(2e9)
	}
	tb.settle()
	home := tb.w.Services[web].V.Home
	if n := tb.on(home, pando.PhaseInRotation); n != 3 || len(tb.w.Of(web)) != 3 {
		t.Errorf("%d of %d on %q: %v", n, len(tb.w.Of(web)), home, tb.hosts())
	}
}

// A move would break connections, so a new rule moves a service only if nothing of it runs.
func TestARuleMovesNothingThatRuns(t *testing.T) {
	tb := served(t, nil)
	tb.put(pando.Host{Name: "h2", Labels: "zone=b"})
	tb.deploy(2, func(s *pando.Spec) { s.Place.Only = "zone=b" })
	step := func() {
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(2e9)
	}
	for range 5 {
		step()
	}
	if n := tb.on("h1", pando.PhaseInRotation); n != 2 || len(tb.w.Of(web)) != 2 {
		t.Errorf("%d of %d stay on h1", n, len(tb.w.Of(web)))
	}
	for _, i := range tb.w.Of(web) {
		tb.fail(i, 1)
	}
	for range 20 {
		step()
	}
	tb.settle()
	if n := tb.on("h2", pando.PhaseInRotation); n != 2 || len(tb.w.Of(web)) != 2 {
		t.Errorf("%d of %d on h2 after the end of all", n, len(tb.w.Of(web)))
	}
	if all := tb.lost(); len(all) == 0 ||
		!strings.Contains(all[len(all)-1], "because h1, its home, lacks the label zone=b") {
		t.Errorf("on record is %q", all)
	}
}

func TestADeployThatWouldMoveAServiceIsRefused(t *testing.T) {
	tb := served(t, nil)
	tb.put(pando.Host{Name: "h2", Labels: "zone=b"})
	spec, svc := pando.Spec{Place: pando.Place{Only: "zone=b"}}, tb.w.Services[web].V
	if why := stuck(tb.w, svc, spec); !strings.Contains(why, "it runs on h1, which lacks") ||
		!strings.Contains(why, "pando rm web") {
		t.Errorf("it is stuck: %q", why)
	}
	wide := spec
	wide.Place.Spread = pando.SpreadHost
	if why := stuck(tb.w, svc, pando.Spec{}) + stuck(tb.w, svc, wide) +
		stuck(tb.w, pando.Service{}, spec); why != "" {
		t.Errorf("no rule, a spread or a new service: %q", why)
	}
	tb.put(pando.Host{Name: "h1", Labels: "zone=b"})
	if why := stuck(tb.w, svc, spec); why != "" {
		t.Errorf("with the label: %q", why)
	}
	tb.lose("h1")
	if why := stuck(tb.w, svc, spec); why != "" {
		t.Errorf("its home is away: %q", why)
	}
}

// A state does not follow the rule: the service waits, with a reason.
func TestAServiceWithStateStaysWhereItsStateIs(t *testing.T) {
	state := map[string]pando.StateType{"total": "counter"}
	tb := served(t, func(s *pando.Spec) { s.State = state })
	tb.put(pando.StateHead{Service: web, Host: "h1"}, pando.Host{Name: "h2", Labels: "zone=b"})
	tb.deploy(2, func(s *pando.Spec) { s.State, s.Place.Only = state, "zone=b" })
	tb.settle()
	tb.fail(tb.w.Of(web)[0], 1)
	tb.settle()
	svc := tb.w.Services[web].V
	if n := tb.on("h2", pando.PhasePlaced); n != 0 ||
		!strings.Contains(svc.Reason, "its home is h1, which lacks the label zone=b") {
		t.Errorf("%d placed on h2; it is %s: %s", n, svc.Phase, svc.Reason)
	}
}

func TestAServiceStaysApartFromAnother(t *testing.T) {
	db := pando.DefaultService("db")
	tb := newTable(t)
	tb.put(pando.Host{Name: "h2"}, pando.Service{ServiceKey: db}, pando.Instance{
		ID: "db-1", Service: db, Host: "h1", Phase: pando.PhaseInRotation})
	apart := func(s *pando.Spec) { s.Place.Apart = "db" }
	tb.deploy(1, apart)
	tb.settle()
	if n := tb.on("h2", pando.PhasePlaced); n != 2 {
		t.Errorf("%d of 2 placed apart from db", n)
	}
	// The other service arrives where this one runs: nothing moves.
	second := pando.Instance{ID: "db-2", Service: db, Host: "h2", Phase: pando.PhaseInRotation}
	tb.run()
	tb.put(second)
	tb.settle()
	if n := tb.on("h2", pando.PhaseInRotation); n != 2 {
		t.Errorf("%d of 2 stay beside db", n)
	}
}

func TestAServiceWaitsUntilTheOtherHasLeftAHost(t *testing.T) {
	db := pando.DefaultService("db")
	tb := newTable(t)
	first := pando.Instance{ID: "db-1", Service: db, Host: "h1", Phase: pando.PhaseInRotation}
	tb.put(pando.Service{ServiceKey: db}, first)
	tb.deploy(1, func(s *pando.Spec) { s.Place.Apart = "db" })
	tb.settle()
	if n := len(tb.w.Of(web)); n != 0 {
		t.Errorf("%d instances beside db", n)
	}
	_, wake := decide.Decide(tb.w, web, tb.now, tb.ids)
	if wake.IsZero() {
		t.Error("it never looks again")
	}
	tb.rev++
	tb.commit(pando.Txn{Delete: []pando.Key{first.Key()}}, tb.rev)
	tb.settle()
	if n := tb.on("h1", pando.PhasePlaced); n != 2 {
		t.Errorf("%d of 2 placed after db has left", n)
	}
}

func TestFitsNamesTheHostThatIsChosen(t *testing.T) {
	tb := spread(t, 2, nil)
	tb.put(pando.Member{Name: "h1"}, pando.Member{Name: "h2"}, pando.Member{Name: "h3"},
		pando.Member{Name: "h4"}, pando.Host{Name: "h1", Leaving: true})
	c := New(Config{Clock: wall.Clock{}, IDs: tb.ids})
	c.world = tb.w
	all, err := c.Fits(t.Context(), web)
	if err != nil || len(all) != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
	before := tb.hosts()
	tb.settle()
	tb.run()
	after := tb.hosts()
	for n, f := range all[:3] {
		if grew := after[n] > before[n] && before[n] == 0; f.Host != "h1" && f.Next != grew ||
			f.Host != "h1" && f.Instances != before[n] || f.Reason == "" {
			t.Errorf("%+v; there are %d and then %d", f, before[n], after[n])
		}
	}
	if all[0].Reason != "it leaves" || all[3].Reason != "it is away" || all[3].Takes {
		t.Errorf("%+v", all)
	}
	none := pando.DefaultService("none")
	if _, err := c.Fits(t.Context(), none); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("of no service: %v", err)
	}
}

func TestSpreadIsRefusedUntilEveryHostTunnels(t *testing.T) {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1", Tunnel: true}, pando.Host{Name: "h2"})
	wide := pando.Spec{Place: pando.Place{Spread: "host"}}
	if why := unable(tb.w, wide); !strings.Contains(why, "place.spread: host h2") {
		t.Errorf("with a host of an older build: %q", why)
	}
	if why := unable(tb.w, pando.Spec{}); why != "" {
		t.Errorf("a service on one host: %q", why)
	}
	tb.put(pando.Host{Name: "h2", Tunnel: true})
	if why := unable(tb.w, wide); why != "" {
		t.Errorf("with tunnels: %q", why)
	}
}

func TestABundleIsRefusedUntilEveryHostKnowsBundles(t *testing.T) {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1", Bundles: true}, pando.Host{Name: "h2"})
	bundled := pando.Spec{Bundle: pando.Bundle{Folder: "/srv/site", Digest: "sha256:1"}}
	if why := unable(tb.w, bundled); !strings.Contains(why, "host h2") {
		t.Errorf("with a host of an older build: %q", why)
	}
	if why := unable(tb.w, pando.Spec{}); why != "" {
		t.Errorf("without a bundle: %q", why)
	}
	tb.put(pando.Host{Name: "h2", Bundles: true})
	if why := unable(tb.w, bundled); why != "" {
		t.Errorf("with newer hosts: %q", why)
	}
}

func TestAnotherBundleIsAnotherSpec(t *testing.T) {
	one := pando.Spec{Name: "web", Bundle: pando.Bundle{Folder: "/srv/site", Digest: "sha256:1"},
		Rollout: pando.Rollout{Order: pando.StartFirst}}
	two := one
	two.Bundle.Digest = "sha256:2"
	if !sameSpec(one, one) || sameSpec(one, two) {
		t.Error("two bundles are one spec")
	}
	if got := two.Files(); got.Reference != "bundle:/srv/site" || got.Digest != "sha256:2" {
		t.Errorf("its files are %+v", got)
	}
}
