package features

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list that a change cuts is read anew, and another error is not.
func TestACutListIsReadAnew(t *testing.T) {
	other := errors.New("other")
	for name, c := range map[string]struct {
		cuts  int
		end   error
		reads int
		want  error
	}{
		"whole":       {0, nil, 1, nil},
		"cut twice":   {2, nil, 3, nil},
		"broken":      {0, other, 1, other},
		"never whole": {1 << 20, nil, dumpsMax, netlink.ErrDumpInterrupted},
	} {
		reads := 0
		all, err := Dump(func() ([]int, error) {
			if reads++; reads <= c.cuts {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, c.end
		})
		if !errors.Is(err, c.want) || reads != c.reads || err == nil && len(all) != 2 {
			t.Errorf("%s: %v, %v after %d reads", name, all, err, reads)
		}
	}
}
