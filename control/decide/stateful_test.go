package decide_test

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

func TestAGroupFormsInOrder(t *testing.T) {
	tb := decidetest.Group(t)
	tb.Settle()
	tb.Expect("1 h1 placed bootstrap")
	tb.Run()
	tb.Settle()
	tb.Expect("1 h1 in rotation bootstrap; 2 h2 placed join")
	tb.Run()
	tb.Settle()
	tb.Run()
	tb.Settle()
	tb.Expect("1 h1 in rotation bootstrap; 2 h2 in rotation join; 3 h3 in rotation join")
	if svc := tb.W.Services[web].V; !svc.Roll.Formed || svc.Phase != pando.ServiceServing {
		t.Errorf("the service is %s: %+v", svc.Phase, svc.Roll)
	}
}

func TestACrashedOrdinalKeepsItsHost(t *testing.T) {
	tb := decidetest.FormedGroup(t)
	for _, i := range tb.W.Of(web) {
		if i.Ordinal == 2 {
			tb.Fail(i, 137)
		}
	}
	tb.Settle()
	tb.Expect("1 h1 in rotation bootstrap; 2 h2 placed join; 3 h3 in rotation join")
}

// An ordinal that crashed first is on its way to join the others when these crash too. It ends, and
// takes part in the election.
func TestAStrayTakesPartInTheElection(t *testing.T) {
	tb := decidetest.FormedGroup(t)
	for ordinal := 1; ordinal <= 3; ordinal++ {
		for _, i := range tb.W.Of(web) {
			if i.Ordinal == ordinal {
				tb.Fail(i, 137)
			}
		}
		if ordinal == 1 {
			tb.Settle()
			tb.Expect("1 h1 placed join; 2 h2 in rotation join; 3 h3 in rotation join")
		}
	}
	tb.Settle()
	tb.Expect("1 h1 draining join")
	tb.Run()
	tb.Settle()
	tb.Expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
	tb.Report(9, 7, 8)
	tb.Settle()
	tb.Expect("1 h1 placed bootstrap; 2 h2 placed recover; 3 h3 placed recover")
}

// With a quorum, the positions of two decide once the host of the third is away.
func TestAQuorumRecoversWithoutAHost(t *testing.T) {
	for quorum, want := range map[int]string{
		0: "1 h1 in rotation bootstrap; 2 h2 placed recover; 3 h3 placed recover",
		2: "1 h1 in rotation bootstrap; 2 h2 placed recover; 3 h3 placed bootstrap",
	} {
		tb := decidetest.New(t)
		for _, h := range []pando.HostName{"h1", "h2", "h3"} {
			tb.Put(pando.Host{Name: h, Tunnel: true, Ordinals: true})
		}
		tb.Deploy(1, func(s *pando.Spec) {
			decidetest.Stateful(s)
			s.Hooks.Quorum = quorum
		})
		for range 4 {
			tb.Settle()
			tb.Run()
		}
		tb.Settle()
		tb.Rev++
		tb.Commit(pando.Txn{Delete: []pando.Key{pando.Host{Name: "h1"}.Key()}}, tb.Rev)
		for _, i := range tb.W.Of(web) {
			if i.Ordinal > 1 {
				tb.Fail(i, 137)
			}
		}
		tb.Settle()
		tb.Report(-1, 7, 8)
		tb.Settle()
		tb.Expect(want)
	}
}

func TestAGroupRecoversFromTheNewest(t *testing.T) {
	tb := decidetest.FormedGroup(t)
	tb.CrashAll()
	tb.Settle()
	tb.Expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
	tb.Report(7, -1, 8)
	tb.Settle()
	tb.Expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
	if why := tb.W.Services[web].V.Reason; !strings.Contains(why, "web-1 is not reported yet") {
		t.Errorf("the service waits because %s", why)
	}
	tb.Report(7, 9, 8)
	tb.Settle()
	tb.Expect("1 h1 placed recover; 2 h2 placed bootstrap; 3 h3 placed recover")
	tb.Serve(2)
	tb.Settle()
	tb.Expect("1 h1 placed join; 2 h2 in rotation bootstrap; 3 h3 placed recover")
	tb.Serve(1)
	tb.Settle()
	tb.Expect("1 h1 in rotation join; 2 h2 in rotation bootstrap; 3 h3 placed join")
}

func TestAnOrdinalWaitsForItsHost(t *testing.T) {
	tb := decidetest.FormedGroup(t)
	tb.CrashAll()
	tb.Rev++
	tb.Commit(pando.Txn{Delete: []pando.Key{pando.HostKey("h3")}}, tb.Rev)
	tb.Settle()
	tb.Report(7, 6, -1)
	tb.Settle()
	tb.Expect("1 h1 placed recover; 2 h2 placed recover")
	svc := tb.W.Services[web].V
	if want := "its host h3 is away"; !strings.Contains(svc.Reason, want) ||
		!strings.Contains(svc.Reason, "--force-from") {
		t.Errorf("the service waits because %s", svc.Reason)
	}
	roll := *svc.Roll
	roll.Force = 1
	svc.Roll = &roll
	tb.Put(svc)
	tb.Settle()
	tb.Expect("1 h1 placed bootstrap; 2 h2 placed recover")
	tb.Serve(1)
	tb.Settle()
	tb.Expect("1 h1 in rotation bootstrap; 2 h2 placed join")
	if left := tb.W.Services[web].V.Roll.Force; left != 0 {
		t.Errorf("the forced bootstrap of %d is still asked for", left)
	}
}

func TestAGroupChangesAndEndsOneAtATime(t *testing.T) {
	tb := decidetest.FormedGroup(t)
	tb.Deploy(2, decidetest.Stateful)
	leaving := func() (out []int) {
		for _, i := range tb.W.Of(web) {
			if i.Phase == pando.PhaseDraining {
				out = append(out, i.Ordinal)
			}
		}
		return out
	}
	var order []int
	for range 20 {
		tb.Settle()
		now := leaving()
		if len(now) > 1 {
			t.Fatalf("%v leave at once", now)
		}
		order = append(order, now...)
		tb.Run()
		tb.Now = tb.Now.Add(2e9)
	}
	if got := fmt.Sprint(order); got != "[1 2 3]" || tb.W.Services[web].V.Current != 2 {
		t.Errorf("the ordinals %s left, and revision %d serves", got, tb.W.Services[web].V.Current)
	}
	svc := tb.W.Services[web].V
	svc.Removing = true
	tb.Put(svc)
	order = nil
	for range 10 {
		tb.SettleLoosely()
		order = append(order, leaving()...)
		tb.Run()
	}
	if got := fmt.Sprint(order); got != "[3 2 1]" || len(tb.W.Services) != 0 {
		t.Errorf("the ordinals %s left, and %d services are there", got, len(tb.W.Services))
	}
	if kept := tb.W.Volumes[web].V.Roll; kept.Host(3) != "h3" || !kept.Formed {
		t.Errorf("of the volumes the store keeps %+v", kept)
	}
	tb.Deploy(1, decidetest.Stateful)
	tb.Settle()
	tb.Expect("1 h1 placed recover; 2 h2 placed recover; 3 h3 placed recover")
}
