package control

import (
	"fmt"
	"testing"

	"pando.run/pando"
)

// The slot of a removed host rests while others are free, also after another server began to lead.
// Its programs may run on, with the addresses of the slot.
func TestTheSlotOfARemovedHostRests(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		admit := func(name pando.HostName) int {
			t.Helper()
			m, err := l.Admit(t.Context(), pando.Member{Name: name, PublicKey: string(name)}, true, nil)
			if err != nil {
				t.Fatal(err)
			}
			return m.Slot
		}
		first, second, third := admit("a"), admit("b"), admit("c")
		if first != 0 || second != 1 || third != 2 {
			t.Errorf("the slots are %d, %d and %d", first, second, third)
		}
		for n := range 20 {
			name := pando.HostName(fmt.Sprintf("short-%d", n))
			if slot := admit(name); slot != 3+n {
				t.Errorf("%s has slot %d, want %d, which nobody had", name, slot, 3+n)
			}
			by := pando.Asker{Kind: pando.AskerOperator}
			if err := l.RemoveHost(t.Context(), name, true, by); err != nil {
				t.Fatal(err)
			}
		}
		if again := admit("b"); again != second {
			t.Errorf("b has slot %d, want its own", again)
		}
	})
}
