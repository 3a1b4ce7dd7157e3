package control

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// withVolume is the change of a spec that gives each instance a volume of its own.
func withVolume(s *pando.Spec) { s.Volumes = []pando.Volume{{Name: "data", Path: "/d"}} }

// ordinals returns the ordinals of the instances that have their volumes, in the order of birth.
func (tb *table) ordinals() (out []int) {
	for _, i := range tb.w.Of(web) {
		if i.Phase != pando.PhaseFailed && i.Phase != pando.PhaseMerged {
			out = append(out, i.Ordinal)
		}
	}
	return out
}

func wantOrdinals(t *testing.T, tb *table, when string, want ...int) {
	t.Helper()
	found := map[int]int{}
	for _, n := range tb.ordinals() {
		found[n]++
	}
	for _, n := range want {
		found[n]--
	}
	for n, many := range found {
		if many != 0 {
			t.Errorf("%s, the ordinals are %v, want %v (%d)", when, tb.ordinals(), want, n)
			return
		}
	}
}

// The successor of an instance gets its ordinal, after a failure and in a rollout. No two instances
// have one ordinal at any step.
func TestTheSuccessorGetsTheVolumes(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, withVolume)
	tb.settle()
	tb.run()
	tb.settle()
	wantOrdinals(t, tb, "at first", 1, 2)
	tb.fail(tb.w.Of(web)[0], 1)
	tb.steps("a successor", func() bool { return tb.count(pando.PhaseInRotation) == 2 })
	wantOrdinals(t, tb, "after a failure", 1, 2)
	tb.deploy(2, func(s *pando.Spec) { withVolume(s); s.StopSignal = "SIGINT" })
	tb.steps("the rollout", func() bool {
		seen := map[int]bool{}
		for _, n := range tb.ordinals() {
			if seen[n] {
				t.Fatalf("two instances have ordinal %d: %v", n, tb.ordinals())
			}
			seen[n] = true
		}
		return tb.serves2()
	})
	wantOrdinals(t, tb, "after a rollout", 1, 2)
}

// steps lets instances take their steps until done returns true.
func (tb *table) steps(what string, done func() bool) {
	tb.t.Helper()
	for range 100 {
		tb.settle()
		if done() {
			return
		}
		tb.now = tb.now.Add(time.Second)
		tb.run()
	}
	tb.t.Fatalf("%s never comes: %v", what, tb.w.Of(web))
}

// serves2 reports whether two instances of revision 2 serve, and no other.
func (tb *table) serves2() bool {
	all := tb.w.Of(web)
	for _, i := range all {
		if i.Revision != 2 || i.Phase != pando.PhaseInRotation {
			return false
		}
	}
	return len(all) == 2
}

func TestAServiceWithVolumesWaitsForItsHome(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, withVolume)
	tb.settle()
	tb.run()
	tb.settle()
	tb.put(pando.Host{Name: "h2"})
	tb.lose("h1")
	tb.settle()
	if svc := tb.w.Services[web].V; svc.Home != "h1" || !strings.Contains(svc.Reason, "is on h1") {
		t.Errorf("without its home it is %s on %s: %s", svc.Phase, svc.Home, svc.Reason)
	}
	if n := tb.on("h2", pando.PhasePlaced); n != 0 {
		t.Errorf("%d instances start without their volumes", n)
	}
}

// A service that is removed and deployed again starts on the host with its volumes, or waits for
// that host. A removal that purges forgets the host.
func TestARemovedServiceComesBackToItsVolumes(t *testing.T) {
	tb := newTable(t)
	remove := func(purge bool) {
		t.Helper()
		svc := tb.w.Services[web].V
		svc.Removing, svc.Purge = true, purge
		tb.put(svc)
		for range 5 {
			tb.settle()
			tb.run()
		}
		if _, there := tb.w.Services[web]; there {
			t.Fatal("the service is still there")
		}
	}
	deploy := func() {
		t.Helper()
		tb.deploy(1, withVolume)
		for range 3 {
			tb.settle()
			tb.run()
		}
	}
	deploy()
	home := tb.w.Services[web].V.Home
	remove(false)
	if kept := tb.w.Volumes[web].V; kept.Host != home || home != "h1" {
		t.Fatalf("its volumes are on %q, and it was on %q", kept.Host, home)
	}
	tb.put(pando.Host{Name: "h0"})
	tb.lose("h1")
	deploy()
	if n := tb.on("h0", pando.PhasePlaced) + tb.on("h0", pando.PhaseInRotation); n != 0 {
		t.Errorf("%d instances start without their volumes", n)
	}
	if why := tb.w.Services[web].V.Reason; !strings.Contains(why, "is on h1") {
		t.Errorf("it waits because %s", why)
	}
	tb.put(pando.Host{Name: "h1"})
	for range 3 {
		tb.settle()
		tb.run()
	}
	if svc := tb.w.Services[web].V; svc.Home != "h1" {
		t.Errorf("it comes back on %q", svc.Home)
	}
	remove(true)
	if len(tb.w.Volumes) != 0 {
		t.Errorf("after a purge: %+v", tb.w.Volumes)
	}
}

// The instances of a service with a volume of another one run on the host of that one, and wait
// until it has a host. A volume of its own elsewhere keeps it waiting, with both hosts named.
func TestAServiceRunsWhereTheVolumeOfAnotherIs(t *testing.T) {
	shares := func(s *pando.Spec) {
		s.Volumes = []pando.Volume{{Name: "media", Path: "/m", Shared: true, Of: "db"}}
	}
	tb := newTable(t)
	tb.put(pando.Host{Name: "h2"})
	tb.deploy(1, shares)
	waits := func(want string) {
		t.Helper()
		tb.settle()
		if got := tb.w.Services[web].V.Reason; !strings.Contains(got, want) || len(tb.w.Of(web)) > 0 {
			t.Errorf("it has %d instances, and the reason is %q, want %q", len(tb.w.Of(web)), got, want)
		}
		if _, wake := decide.Decide(tb.w, web, tb.now, tb.ids); !wake.After(tb.now) {
			t.Error("nothing looks again")
		}
	}
	waits("its volume media is of db, which is not deployed: deploy db first")
	db := pando.Service{ServiceKey: database, Target: 1, Latest: 1}
	tb.put(db)
	waits("its volume media is of db, which has no host yet")
	db.Home = "h2"
	tb.put(db)
	tb.settle()
	if n := tb.on("h2", pando.PhasePlaced); n != 2 {
		t.Errorf("%d instances are on the host of db: %v", n, tb.w.Of(web))
	}
	tb = newTable(t)
	tb.put(pando.Host{Name: "h2"}, pando.Service{ServiceKey: database, Home: "h2"},
		pando.Service{ServiceKey: web, Home: "h1"})
	tb.deploy(1, func(s *pando.Spec) {
		shares(s)
		s.Volumes = append(s.Volumes, pando.Volume{
			Name: "own", Path: "/o"})
	})
	waits("its own volumes are on h1, and the volumes that it shares are on h2")
}

// A shared volume names the instances of each service that has it.
func TestAVolumeOfTwoServicesNamesBoth(t *testing.T) {
	tb := newTable(t)
	worker := pando.DefaultService("worker")
	for n, s := range []pando.Spec{
		{Name: "web", Volumes: []pando.Volume{{Name: "media", Path: "/m", Shared: true}}},
		{Name: "worker", Volumes: []pando.Volume{{Name: "media", Path: "/m", Shared: true, Of: "web"}}},
		{Name: "other", Volumes: []pando.Volume{{Name: "media", Path: "/m", Shared: true}}},
	} {
		tb.put(pando.Service{ServiceKey: s.Key(), Target: 1, Latest: 1},
			pando.Revision{Service: s.Key(), Number: 1, Spec: s},
			pando.Instance{ID: pando.InstanceID(string(s.Name) + "-1"), Service: s.Key(), Host: "h1",
				Revision: 1, Phase: pando.PhaseInRotation, Ordinal: n + 1})
	}
	got := holders(tb.w, pando.KeptVolume{Service: web, Name: "media", Part: "shared", Host: "h1"})
	if len(got) != 2 || got[0] != "web-1" || got[1] != "worker-1" {
		t.Errorf("the volume is of %v", got)
	}
	if b := borrowers(tb.w, web); len(b) != 1 || b[0] != worker {
		t.Errorf("the volumes of web are shared with %v", b)
	}
}

// The sizes of volumes follow the instances that get them, and stay when a service is removed.
func TestTheSizesOfVolumesStayWithTheService(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) { withVolume(s); s.Volumes[0].Bytes = 1 << 20 })
	tb.settle()
	tb.run()
	tb.settle()
	wantOrdinals(t, tb, "at first", 1, 2)
	if n := pando.SumSizes(tb.w.Services[web].V.Sizes); n != 2<<20 {
		t.Fatalf("two volumes of 1 MiB take %d bytes", n)
	}
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	tb.steps("the removal", func() bool { _, there := tb.w.Services[web]; return !there })
	if n := pando.SumSizes(tb.w.Volumes[web].V.Sizes); n != 2<<20 {
		t.Errorf("after the removal they take %d bytes", n)
	}
}
