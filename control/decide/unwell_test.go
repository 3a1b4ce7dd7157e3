package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

func anyOne(pando.Instance) bool { return true }

// A hung instance that is alone on its host is replaced: the others count, wherever they are.
func TestAHungInstanceAloneOnItsHostIsReplaced(t *testing.T) {
	tb := decidetest.Spread(t, 3, nil)
	var hung pando.InstanceID
	for _, i := range tb.W.Of(web) {
		if i.Host == "h2" {
			hung = i.ID
		}
	}
	tb.Hang(func(i pando.Instance) bool { return i.ID == hung })
	tb.Settle()
	if i := tb.W.Instances[hung].V; i.Phase != pando.PhaseDraining || !i.Walk || i.Halt != "" {
		t.Fatalf("it is %+v", i)
	}
	tb.Run()
	tb.Settle()
	if got := tb.Hosts(); got != [3]int{1, 1, 1} || len(tb.W.Of(web)) != 3 {
		t.Errorf("%v in rotation of %d", got, len(tb.W.Of(web)))
	}
}

// All instances on all hosts stop answering in one second. At most a quarter of the service is out
// at once, however many hosts report, and one always stays. Each round is replaced.
func TestAtMostAQuarterOfAllHostsIsOut(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 3: 1, 4: 1, 8: 2, 9: 2, 12: 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			tb := decidetest.Spread(t, n, nil)
			tb.Hang(anyOne)
			tb.Settle()
			if in := tb.Count(pando.PhaseInRotation); n-in != most {
				t.Fatalf("%d of %d are out of rotation, want %d", n-in, n, most)
			}
			said := map[pando.InstanceID]int{}
			for round := 0; round < 100; round++ {
				tb.Now = tb.Now.Add(time.Second)
				tb.Run()
				tb.Settle()
				if in := tb.Count(pando.PhaseInRotation); n-in > most {
					t.Fatalf("round %d: %d of %d are out of rotation, want at most %d", round, n-in, n, most)
				}
			}
			left := 0
			for _, i := range tb.W.Of(web) {
				if i.Unwell != "" {
					left++
				}
			}
			if (n > 1) != (left == 0) || tb.Count(pando.PhaseInRotation) != n {
				t.Errorf("%d of %d in rotation do not answer", left, tb.Count(pando.PhaseInRotation))
			}
			for _, d := range tb.W.DecisionsOf(web) {
				if said[d.Instance]++; said[d.Instance] > 2 {
					t.Fatalf("%s is spoken of too often: %s", d.Instance, d.Reason)
				}
				if n == 1 && d.Kind == pando.DecidedUnhealthy &&
					!strings.Contains(d.Reason, "it stays, for it is the last in rotation") {
					t.Errorf("the reason is %q", d.Reason)
				}
			}
		})
	}
}

// An instance beyond the least is replaced too, and one that nothing can replace counts against the
// next one for a minute only.
func TestAHungInstanceBeyondTheLeastIsReplaced(t *testing.T) {
	tb := decidetest.Serving(t) // min 2, max 4
	for range 2 {
		tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	tb.Settle()
	if n := tb.Count(pando.PhaseInRotation); n != 4 {
		t.Fatalf("%d in rotation", n)
	}
	tb.Hang(anyOne)
	tb.Settle()
	if in, placed := tb.Count(pando.PhaseInRotation), tb.Count(pando.PhasePlaced); in != 3 || placed != 1 {
		t.Fatalf("%d in rotation, %d placed; want 3 and 1", in, placed)
	}
	tb.Now = tb.Now.Add(decide.UnwellMax - time.Second)
	tb.Settle()
	if in := tb.Count(pando.PhaseInRotation); in != 3 {
		t.Fatalf("%d in rotation before a minute has passed", in)
	}
	tb.Now = tb.Now.Add(time.Second)
	tb.Settle()
	if in := tb.Count(pando.PhaseInRotation); in != 2 {
		t.Errorf("%d in rotation after a minute without a replacement, want 2", in)
	}
}
