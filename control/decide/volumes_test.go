package decide_test

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

// withVolume is the change of a spec that gives each instance a volume of its own.
func withVolume(s *pando.Spec) { s.Volumes = []pando.Volume{{Name: "data", Path: "/d"}} }

func wantOrdinals(t *testing.T, tb *decidetest.Table, when string, want ...int) {
	t.Helper()
	found := map[int]int{}
	for _, n := range tb.Ordinals() {
		found[n]++
	}
	for _, n := range want {
		found[n]--
	}
	for n, many := range found {
		if many != 0 {
			t.Errorf("%s, the ordinals are %v, want %v (%d)", when, tb.Ordinals(), want, n)
			return
		}
	}
}

// The successor of an instance gets its ordinal, after a failure and in a rollout. No two instances
// have one ordinal at any step.
func TestTheSuccessorGetsTheVolumes(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, withVolume)
	tb.Settle()
	tb.Run()
	tb.Settle()
	wantOrdinals(t, tb, "at first", 1, 2)
	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Steps("a successor", func() bool { return tb.Count(pando.PhaseInRotation) == 2 })
	wantOrdinals(t, tb, "after a failure", 1, 2)
	tb.Deploy(2, func(s *pando.Spec) { withVolume(s); s.StopSignal = "SIGINT" })
	tb.Steps("the rollout", func() bool {
		seen := map[int]bool{}
		for _, n := range tb.Ordinals() {
			if seen[n] {
				t.Fatalf("two instances have ordinal %d: %v", n, tb.Ordinals())
			}
			seen[n] = true
		}
		return tb.ServesSecond()
	})
	wantOrdinals(t, tb, "after a rollout", 1, 2)
}

func TestAServiceWithVolumesWaitsForItsHome(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, withVolume)
	tb.Settle()
	tb.Run()
	tb.Settle()
	tb.Put(pando.Host{Name: "h2"})
	tb.Lose("h1")
	tb.Settle()
	if svc := tb.W.Services[web].V; svc.Home != "h1" || !strings.Contains(svc.Reason, "is on h1") {
		t.Errorf("without its home it is %s on %s: %s", svc.Phase, svc.Home, svc.Reason)
	}
	if n := tb.On("h2", pando.PhasePlaced); n != 0 {
		t.Errorf("%d instances start without their volumes", n)
	}
}

// A service that is removed and deployed again starts on the host with its volumes, or waits for
// that host. A removal that purges forgets the host.
func TestARemovedServiceComesBackToItsVolumes(t *testing.T) {
	tb := decidetest.New(t)
	remove := func(purge bool) {
		t.Helper()
		svc := tb.W.Services[web].V
		svc.Removing, svc.Purge = true, purge
		tb.Put(svc)
		for range 5 {
			tb.Settle()
			tb.Run()
		}
		if _, there := tb.W.Services[web]; there {
			t.Fatal("the service is still there")
		}
	}
	deploy := func() {
		t.Helper()
		tb.Deploy(1, withVolume)
		for range 3 {
			tb.Settle()
			tb.Run()
		}
	}
	deploy()
	home := tb.W.Services[web].V.Home
	remove(false)
	if kept := tb.W.Volumes[web].V; kept.Host != home || home != "h1" {
		t.Fatalf("its volumes are on %q, and it was on %q", kept.Host, home)
	}
	tb.Put(pando.Host{Name: "h0"})
	tb.Lose("h1")
	deploy()
	if n := tb.On("h0", pando.PhasePlaced) + tb.On("h0", pando.PhaseInRotation); n != 0 {
		t.Errorf("%d instances start without their volumes", n)
	}
	if why := tb.W.Services[web].V.Reason; !strings.Contains(why, "is on h1") {
		t.Errorf("it waits because %s", why)
	}
	tb.Put(pando.Host{Name: "h1"})
	for range 3 {
		tb.Settle()
		tb.Run()
	}
	if svc := tb.W.Services[web].V; svc.Home != "h1" {
		t.Errorf("it comes back on %q", svc.Home)
	}
	remove(true)
	if len(tb.W.Volumes) != 0 {
		t.Errorf("after a purge: %+v", tb.W.Volumes)
	}
}

// The instances of a service with a volume of another one run on the host of that one, and wait
// until it has a host. A volume of its own elsewhere keeps it waiting, with both hosts named.
func TestAServiceRunsWhereTheVolumeOfAnotherIs(t *testing.T) {
	shares := func(s *pando.Spec) {
		s.Volumes = []pando.Volume{{Name: "media", Path: "/m", Shared: true, Of: "db"}}
	}
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h2"})
	tb.Deploy(1, shares)
	waits := func(want string) {
		t.Helper()
		tb.Settle()
		if got := tb.W.Services[web].V.Reason; !strings.Contains(got, want) || len(tb.W.Of(web)) > 0 {
			t.Errorf("it has %d instances, and the reason is %q, want %q", len(tb.W.Of(web)), got, want)
		}
		if _, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs); !wake.After(tb.Now) {
			t.Error("nothing looks again")
		}
	}
	waits("its volume media is of db, which is not deployed: deploy db first")
	db := pando.Service{ServiceKey: decidetest.Database, Target: 1, Latest: 1}
	tb.Put(db)
	waits("its volume media is of db, which has no host yet")
	db.Home = "h2"
	tb.Put(db)
	tb.Settle()
	if n := tb.On("h2", pando.PhasePlaced); n != 2 {
		t.Errorf("%d instances are on the host of db: %v", n, tb.W.Of(web))
	}
	tb = decidetest.New(t)
	tb.Put(pando.Host{Name: "h2"}, pando.Service{ServiceKey: decidetest.Database, Home: "h2"},
		pando.Service{ServiceKey: web, Home: "h1"})
	tb.Deploy(1, func(s *pando.Spec) {
		shares(s)
		s.Volumes = append(s.Volumes, pando.Volume{
			Name: "own", Path: "/o"})
	})
	waits("its own volumes are on h1, and the volumes that it shares are on h2")
}

// The sizes of volumes follow the instances that get them, and stay when a service is removed.
func TestTheSizesOfVolumesStayWithTheService(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) { withVolume(s); s.Volumes[0].Bytes = 1 << 20 })
	tb.Settle()
	tb.Run()
	tb.Settle()
	wantOrdinals(t, tb, "at first", 1, 2)
	if n := pando.SumSizes(tb.W.Services[web].V.Sizes); n != 2<<20 {
		t.Fatalf("two volumes of 1 MiB take %d bytes", n)
	}
	svc := tb.W.Services[web].V
	svc.Removing = true
	tb.Put(svc)
	tb.Steps("the removal", func() bool { _, there := tb.W.Services[web]; return !there })
	if n := pando.SumSizes(tb.W.Volumes[web].V.Sizes); n != 2<<20 {
		t.Errorf("after the removal they take %d bytes", n)
	}
}
