package console

import (
	"testing"
	"time"

	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestSinceTakesADurationOrATime(t *testing.T) {
	for text, want := range map[string]time.Time{
		"10m": consoletest.Noon.Add(-10 * time.Minute), "0s": consoletest.Noon, "1d12h": consoletest.Noon.Add(-36 * time.Hour),
		"2026-11-01T11:30": consoletest.Noon.Add(-30 * time.Minute), "2026-11-01": consoletest.Noon.Add(-12 * time.Hour),
		"2026-11-01 11:59:59":       consoletest.Noon.Add(-time.Second),
		"2026-11-01T13:00:00+02:00": consoletest.Noon.Add(-time.Hour),
		"2026-11-01T11:59:59.5Z":    consoletest.Noon.Add(-500 * time.Millisecond),
	} {
		if got, err := ParseTime(text, consoletest.Noon); err != nil || !got.Equal(want) {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"1w", "-5m", "yesterday", "11:30", "2026-13-01"} {
		if _, err := ParseTime(text, consoletest.Noon); cli.CodeOf(err) != 2 {
			t.Errorf("%s: %v", text, err)
		}
	}
}
