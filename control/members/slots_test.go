package members

import (
	"testing"

	"pando.run/pando"
	"pando.run/pando/world"
)

func TestTheSlotThatRestsLongestIsGivenRatherThanNone(t *testing.T) {
	w, taken := world.New(), map[int]bool{}
	for n := range pando.Slots() {
		taken[n] = n >= 5
	}
	for n, slot := range []int{3, 0, 1, 2} { // in the order of their release; 4 was never given
		w.Committed(pando.Txn{Put: []pando.Stored{pando.Rest{Slot: slot, Host: "gone"}}},
			pando.StoreRevision(n+1))
	}
	for _, want := range []int{4, 3, 0, 1, 2, pando.Slots()} {
		got := freeSlot(w, taken)
		if got != want {
			t.Errorf("the next slot is %d, want %d", got, want)
		}
		taken[got] = true
	}
}
