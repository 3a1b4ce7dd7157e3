package operator

import (
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

func TestSinceTakesADurationOrATime(t *testing.T) {
	for text, want := range map[string]time.Time{
		"10m": noon.Add(-10 * time.Minute), "0s": noon, "1d12h": noon.Add(-36 * time.Hour),
		"2026-11-01T11:30": noon.Add(-30 * time.Minute), "2026-11-01": noon.Add(-12 * time.Hour),
		"2026-11-01 11:59:59":       noon.Add(-time.Second),
		"2026-11-01T13:00:00+02:00": noon.Add(-time.Hour),
		"2026-11-01T11:59:59.5Z":    noon.Add(-500 * time.Millisecond),
	} {
		if got, err := moment(text, noon); err != nil || !got.Equal(want) {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"1w", "-5m", "yesterday", "11:30", "2026-13-01"} {
		if _, err := moment(text, noon); cli.CodeOf(err) != 2 {
			t.Errorf("%s: %v", text, err)
		}
	}
}

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
		q, err := c.flags.query(noon, c.given)
		if err != nil || q.Lines != c.want || q.Check() != nil {
			t.Errorf("%+v: %+v, %v, want %d lines", c.flags, q, err, c.want)
		}
	}
	for _, f := range []logged{{match: "("}, {lines: -1}, {lines: pando.LogLinesMax + 1},
		{since: "soon"}} {
		if _, err := f.query(noon, false); cli.CodeOf(err) != 2 {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
