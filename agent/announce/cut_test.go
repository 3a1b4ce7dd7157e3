package announce

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// twice counts the shares with two holders, and none those without one.
func (o *town) twice() (twice, none int) {
	for n := range edge.VIPShares {
		holders := 0
		for _, r := range o.holders {
			if s, _ := r.Held(); s.Has(n) {
				holders++
			}
		}
		switch holders {
		case 0:
			none++
		case 1:
		default:
			twice++
		}
	}
	return twice, none
}

// Both sides of a cut may answer while it lasts. After it each VIP has one holder again, for every
// number of hosts and whichever side sees the end first.
func TestAfterACutEachVIPHasOneHolder(t *testing.T) {
	for _, sides := range [][2][]pando.HostName{
		{{"a"}, {"b"}},
		{{"a", "b"}, {"c"}},
		{{"a", "b"}, {"c", "d"}},
		{{"a", "c"}, {"b", "d"}},
	} {
		t.Run(strings.Join(texts(append(sides[0], sides[1]...)), ""), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTown(t, append(sides[0][:len(sides[0]):len(sides[0])], sides[1]...)...)
				o.settle(time.Second)
				for n, side := range sides {
					for _, name := range side {
						o.holders[name].finds(texts(sides[1-n])...)
					}
				}
				time.Sleep(4 * time.Second)
				for _, side := range sides {
					for _, name := range side {
						o.holders[name].finds()
					}
					time.Sleep(700 * time.Millisecond) // the sides do not see it at once
				}
				time.Sleep(2 * offerEvery)
				synctest.Wait()
				if twice, none := o.twice(); twice > 0 || none > 0 {
					t.Fatalf("%d shares have two holders, and %d none", twice, none)
				}
				o.watch(2 * time.Second)
				o.settle(0)
			})
		})
	}
}

// A machine that was suspended with its clocks returns with the VIPs that others have taken. One that
// knows of its suspension answers for none of them, not even once.
func TestASuspendedMachineLeavesItsVIPs(t *testing.T) {
	for name, knows := range map[string]bool{"by its clock": true, "by offers": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTown(t, "a", "b")
				o.settle(time.Second)
				a, b := o.holders["a"], o.holders["b"]
				b.finds("a") // which stands still
				synctest.Wait()
				time.Sleep(50 * time.Millisecond)
				if held(b) != edge.VIPShares || held(a) == 0 {
					t.Fatalf("a holds %d shares, b %d", held(a), held(b))
				}
				if knows {
					a.clock.mu.Lock()
					a.clock.slept = time.Hour
					a.clock.mu.Unlock()
					o.answering() // one answer for each
				}
				b.finds()
				time.Sleep(2 * offerEvery)
				synctest.Wait()
				if twice, none := o.twice(); twice > 0 || none > 0 {
					t.Fatalf("%d shares have two holders, and %d none", twice, none)
				}
				o.watch(time.Second)
			})
		})
	}
}

func TestSharesAreText(t *testing.T) {
	var s edge.Shares
	for n := 0; n < edge.VIPShares; n += 7 {
		s.Add(n)
	}
	if got, err := edge.ParseShares(s.String()); err != nil || got != s {
		t.Errorf("%v became %v (%v)", s, got, err)
	}
	for _, wrong := range []string{"1", strings.Repeat("x", 64)} {
		if _, err := edge.ParseShares(wrong); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
	if none, err := edge.ParseShares(edge.Shares{}.String()); err != nil || none.Len() > 0 {
		t.Error(none, err)
	}
}
