package control

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide"
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

// startsOnH2 lets the service look for a host again. Its two instances must start on h2.
func (tb *table) startsOnH2(t *testing.T) {
	t.Helper()
	tb.now = tb.now.Add(decide.ApartLook)
	tb.settle()
	tb.run()
	tb.settle()
	if tb.on("h2", pando.PhaseInRotation) != 2 || tb.on("h1", pando.PhaseInRotation) != 0 {
		t.Errorf("it runs on %v, want h2", tb.w.Of(web))
	}
}

// A service waits until a host gives its grants, with a reason for each host, and starts there.
func TestAServiceWaitsForAHostThatGivesItsGrants(t *testing.T) {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1", Grants: true}, pando.Host{Name: "h2", Grants: true},
		given("h1", "device=fuse"), given("h2"))
	tb.deploy(1, func(s *pando.Spec) { s.Grants = []pando.Grant{"device=kvm"} })
	tb.settle()
	if all := tb.w.Of(web); len(all) != 0 {
		t.Fatalf("it started without the grant: %v", all)
	}
	if why := tb.w.Services[web].V.Reason; !strings.Contains(why, "pando hosts allow") {
		t.Errorf("its reason is %q", why)
	}
	c := New(Config{Clock: wall.Clock{}, IDs: tb.ids})
	c.world = tb.w
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
	tb.put(given("h2", "device=kvm"))
	tb.startsOnH2(t)
	// A running instance stays when the owner takes the grant away.
	tb.put(given("h2"))
	tb.settle()
	if tb.on("h2", pando.PhaseInRotation) != 2 {
		t.Errorf("the running instance ended: %v", tb.w.Of(web))
	}
}

func TestADeployOfAGrantThatTheHomeDoesNotGiveIsRefused(t *testing.T) {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1", Grants: true}, given("h1"))
	tb.deploy(1, nil)
	tb.settle()
	tb.run()
	s, _ := tb.w.SpecOf(web, 1)
	s.Grants = []pando.Grant{"device=kvm"}
	why := stuck(tb.w, tb.w.Services[web].V, s)
	if !strings.Contains(why, "pando hosts allow h1 device=kvm") {
		t.Errorf("the reason is %q", why)
	}
	if why := unable(tb.w, s); why != "" {
		t.Error(why)
	}
	tb.put(pando.Host{Name: "h0"})
	if why := unable(tb.w, s); !strings.Contains(why, "h0 has an older pando") {
		t.Errorf("an older host: %q", why)
	}
}

// A service with a runtime starts on a host that has it, and waits while none has.
func TestAServiceStartsWhereItsRuntimeIs(t *testing.T) {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1"}, pando.Host{Name: "h2"})
	tb.deploy(1, func(s *pando.Spec) { s.Runtime = pando.RuntimeCrun })
	tb.settle()
	if all := tb.w.Of(web); len(all) != 0 {
		t.Fatalf("it started without crun: %v", all)
	}
	if why := tb.w.Services[web].V.Reason; !strings.Contains(why, "install crun") {
		t.Errorf("its reason is %q", why)
	}
	tb.put(pando.Host{Name: "h2", Crun: true})
	tb.startsOnH2(t)
	c := New(Config{Clock: wall.Clock{}, IDs: tb.ids})
	c.world = tb.w
	fits, err := c.Fits(t.Context(), web)
	if err != nil || len(fits) != 2 || !strings.Contains(fits[0].Reason, "has no crun") {
		t.Errorf("%+v, %v", fits, err)
	}
}
