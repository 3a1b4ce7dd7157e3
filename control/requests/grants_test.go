package requests

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/driver/wall"
)

// given returns the record of a member that gives grants.
func given(h pando.HostName, grants ...pando.Grant) pando.Member {
	m := pando.Member{Name: h, Grants: map[pando.Grant]pando.Granting{}}
	for _, g := range grants {
		m.Grants[g] = pando.Granting{May: true}
	}
	return m
}

// A service waits until a host gives its grants, with a reason for each host, and starts there.
func TestAServiceWaitsForAHostThatGivesItsGrants(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h1", Grants: true}, pando.Host{Name: "h2", Grants: true},
		given("h1", "device=fuse"), given("h2"))
	tb.Deploy(1, func(s *pando.Spec) { s.Grants = []pando.Grant{"device=kvm"} })
	tb.Settle()
	if all := tb.W.Of(web); len(all) != 0 {
		t.Fatalf("it started without the grant: %v", all)
	}
	if why := tb.W.Services[web].V.Reason; !strings.Contains(why, "pando hosts allow") {
		t.Errorf("its reason is %q", why)
	}
	c := asking(nil, &mirror.Mirror{Clock: wall.Clock{}, IDs: tb.IDs, World: tb.W})
	fits, err := c.Fits(t.Context(), web)
	if err != nil || len(fits) != 2 {
		t.Fatal(fits, err)
	}
	for _, f := range fits {
		want := "does not give device=kvm (`pando hosts allow " + string(f.Host) + " device=kvm`)"
		if f.Takes || !strings.Contains(f.Reason, want) {
			t.Errorf("%s: takes %v, %q", f.Host, f.Takes, f.Reason)
		}
	}
	tb.Put(given("h2", "device=kvm"))
	tb.StartsOnH2(t)
	// A running instance stays when the owner takes the grant away.
	tb.Put(given("h2"))
	tb.Settle()
	if tb.On("h2", pando.PhaseInRotation) != 2 {
		t.Errorf("the running instance ended: %v", tb.W.Of(web))
	}
}

func TestADeployOfAGrantThatTheHomeDoesNotGiveIsRefused(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h1", Grants: true}, given("h1"))
	tb.Deploy(1, nil)
	tb.Settle()
	tb.Run()
	s, _ := tb.W.SpecOf(web, 1)
	s.Grants = []pando.Grant{"device=kvm"}
	why := stuck(tb.W, tb.W.Services[web].V, s)
	if !strings.Contains(why, "pando hosts allow h1 device=kvm") {
		t.Errorf("the reason is %q", why)
	}
	if why := unable(tb.W, s); why != "" {
		t.Error(why)
	}
	tb.Put(pando.Host{Name: "h0"})
	if why := unable(tb.W, s); !strings.Contains(why, "h0 has an older pando") {
		t.Errorf("an older host: %q", why)
	}
}

// A service with a runtime starts on a host that has it, and waits while none has.
func TestAServiceStartsWhereItsRuntimeIs(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h1"}, pando.Host{Name: "h2"})
	tb.Deploy(1, func(s *pando.Spec) { s.Runtime = pando.RuntimeCrun })
	tb.Settle()
	if all := tb.W.Of(web); len(all) != 0 {
		t.Fatalf("it started without crun: %v", all)
	}
	if why := tb.W.Services[web].V.Reason; !strings.Contains(why, "install crun") {
		t.Errorf("its reason is %q", why)
	}
	tb.Put(pando.Host{Name: "h2", Crun: true})
	tb.StartsOnH2(t)
	c := asking(nil, &mirror.Mirror{Clock: wall.Clock{}, IDs: tb.IDs, World: tb.W})
	fits, err := c.Fits(t.Context(), web)
	if err != nil || len(fits) != 2 || !strings.Contains(fits[0].Reason, "has no crun") {
		t.Errorf("%+v, %v", fits, err)
	}
}
