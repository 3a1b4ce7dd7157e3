package world

import (
	"bytes"
	"fmt"
	"testing"

	"pando.run/pando"
)

// A process writes the oldest layout that it can, until the cluster agrees on a newer one. It reads
// both. Built with the tag layoutnext, the test covers the switch.
func TestALayoutIsReadBeforeItIsWritten(t *testing.T) {
	was := agreed.Load()
	defer agreed.Store(was)
	agreed.Store(0)
	s := pando.Service{ServiceKey: pando.DefaultService("web"), Latest: 7}
	check := func(layout int) {
		t.Helper()
		b, err := Encode(s)
		if err != nil || !bytes.HasPrefix(b, fmt.Appendf(nil, `{"layout":%d,`, layout)) {
			t.Errorf("wrote %s, %v, want layout %d", b, err, layout)
		}
		var got pando.Service
		if err := Decode(pando.Record{Key: s.Key(), Value: b}, &got); err != nil || got.Latest != 7 {
			t.Errorf("read %+v, %v", got, err)
		}
	}
	check(oldestLayout())
	for n := oldestLayout(); n <= currentLayout; n++ {
		Agree(n)
		check(n)
	}
	Agree(1) // no way back
	check(currentLayout)
	Agree(currentLayout + 5) // this build cannot write it
	check(currentLayout)
}
