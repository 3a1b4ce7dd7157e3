package move

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"pando.run/pando"
)

// A move that breaks names the side that failed first, and not what followed from that.
func TestAMoveNamesTheSideThatFailedFirst(t *testing.T) {
	full, dump := errors.New("no space left"), errors.New("cannot be dumped")
	closed := fmt.Errorf("send the pages: %w", io.ErrClosedPipe)
	stopped := fmt.Errorf("send the pages: %w", errTakesNoMore)
	refused := fmt.Errorf("%w: another kernel", pando.ErrRefused)
	for what, c := range map[string]struct {
		received, sent error
		first          bool // the sending side ended first
		want           error
	}{
		"both are well":               {nil, nil, true, nil},
		"the receiver fails":          {full, stopped, false, full},
		"the receiver closes":         {full, closed, true, full},
		"the receiver refuses":        {refused, dump, true, refused},
		"the sender fails":            {fmt.Errorf("carry: %w", dump), dump, true, dump},
		"the receiver takes a part":   {nil, stopped, false, stopped},
		"the receiver fails at last":  {full, nil, true, full},
		"the answer is lost at last":  {pando.ErrUnavailable, nil, true, pando.ErrUnavailable},
		"the sender fails, unnoticed": {nil, dump, true, dump},
	} {
		left := make(chan error, 1)
		stop := func() {}
		if c.first {
			left <- c.sent
		} else {
			stop = func() { left <- c.sent }
		}
		if got := causeOf(c.received, left, stop); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
