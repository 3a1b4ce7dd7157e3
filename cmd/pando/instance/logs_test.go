package instance

import (
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestASearchHasMoreLinesUnlessTheirNumberIsGiven(t *testing.T) {
	for _, c := range []struct {
		flags logged
		given bool
		want  int
	}{
		{logged{lines: 100}, false, 100},
		{logged{lines: 100, since: "1h"}, false, sinceLines},
		{logged{lines: 100, match: "x"}, false, sinceLines},
		{logged{lines: 7, since: "1h", match: "x"}, true, 7},
		{logged{lines: 0, match: "x"}, true, 0},
	} {
		q, err := c.flags.query(consoletest.Noon, c.given)
		if err != nil || q.Lines != c.want || q.Check() != nil {
			t.Errorf("%+v: %+v, %v, want %d lines", c.flags, q, err, c.want)
		}
	}
	for _, f := range []logged{{match: "("}, {lines: -1}, {lines: pando.LogLinesMax + 1},
		{since: "soon"}} {
		if _, err := f.query(consoletest.Noon, false); cli.CodeOf(err) != 2 {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
