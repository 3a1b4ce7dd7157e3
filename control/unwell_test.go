package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// hang lets hosts report instances that do not answer.
func (tb *table) hang(which func(pando.Instance) bool) {
	for _, i := range tb.w.Of(web) {
		if i.Phase == pando.PhaseInRotation && i.Unwell == "" && which(i) {
			i.Unwell = "3 live probes failed: no answer"
			tb.put(i)
		}
	}
}

func anyOne(pando.Instance) bool { return true }

// A hung instance that is alone on its host is replaced: the others count, wherever they are.
func TestAHungInstanceAloneOnItsHostIsReplaced(t *testing.T) {
	tb := spread(t, 3, nil)
	var hung pando.InstanceID
	for _, i := range tb.w.Of(web) {
		if i.Host == "h2" {
			hung = i.ID
		}
	}
	tb.hang(func(i pando.Instance) bool { return i.ID == hung })
	tb.settle()
	if i := tb.w.Instances[hung].V; i.Phase != pando.PhaseDraining || !i.Walk || i.Halt != "" {
		t.Fatalf("it is %+v", i)
	}
	tb.run()
	tb.settle()
	if got := tb.hosts(); got != [3]int{1, 1, 1} || len(tb.w.Of(web)) != 3 {
		t.Errorf("%v in rotation of %d", got, len(tb.w.Of(web)))
	}
}

// All instances on all hosts stop answering in one second. At most a quarter of the service is out
// at once, however many hosts report, and one always stays. Each round is replaced.
func TestAtMostAQuarterOfAllHostsIsOut(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 3: 1, 4: 1, 8: 2, 9: 2, 12: 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			tb := spread(t, n, nil)
			tb.hang(anyOne)
			tb.settle()
			if in := tb.count(pando.PhaseInRotation); n-in != most {
				t.Fatalf("%d of %d are out of rotation, want %d", n-in, n, most)
			}
			said := map[pando.InstanceID]int{}
			for round := 0; round < 100; round++ {
				tb.now = tb.now.Add(time.Second)
				tb.run()
				tb.settle()
				if in := tb.count(pando.PhaseInRotation); n-in > most {
					t.Fatalf("round %d: %d of %d are out of rotation, want at most %d", round, n-in, n, most)
				}
			}
			left := 0
			for _, i := range tb.w.Of(web) {
				if i.Unwell != "" {
					left++
				}
			}
			if (n > 1) != (left == 0) || tb.count(pando.PhaseInRotation) != n {
				t.Errorf("%d of %d in rotation do not answer", left, tb.count(pando.PhaseInRotation))
			}
			for _, d := range tb.w.DecisionsOf(web) {
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
	tb := serving(t) // min 2, max 4
	for range 2 {
		tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(2 * time.Second)
	}
	tb.settle()
	if n := tb.count(pando.PhaseInRotation); n != 4 {
		t.Fatalf("%d in rotation", n)
	}
	tb.hang(anyOne)
	tb.settle()
	if in, placed := tb.count(pando.PhaseInRotation), tb.count(pando.PhasePlaced); in != 3 || placed != 1 {
		t.Fatalf("%d in rotation, %d placed; want 3 and 1", in, placed)
	}
	tb.now = tb.now.Add(decide.UnwellMax - time.Second)
	tb.settle()
	if in := tb.count(pando.PhaseInRotation); in != 3 {
		t.Fatalf("%d in rotation before a minute has passed", in)
	}
	tb.now = tb.now.Add(time.Second)
	tb.settle()
	if in := tb.count(pando.PhaseInRotation); in != 2 {
		t.Errorf("%d in rotation after a minute without a replacement, want 2", in)
	}
}
