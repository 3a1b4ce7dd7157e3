package inspect

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
)

// A number that nothing counts is absent. It is not 0.
func TestAUseThatNothingCountsIsAbsent(t *testing.T) {
	const none = pando.Uncounted
	for what, is := range map[string]struct {
		use   pando.Usage
		err   error
		has   []string
		lacks []string
	}{
		"all is counted":      {pando.Usage{CPU: 1, MemoryBytes: 0, PIDs: 2}, nil, []string{`"memory_bytes":0`, `"pids":2`}, []string{"missing"}},
		"nothing is counted":  {pando.Usage{CPU: none, MemoryBytes: none, PIDs: none}, nil, []string{"missing"}, []string{"memory_bytes", "pids", "-1"}},
		"memory is uncounted": {pando.Usage{CPU: 1, MemoryBytes: none, PIDs: 2}, nil, []string{`"pids":2`}, []string{"memory_bytes", "missing"}},
		"it failed":           {pando.Usage{}, errors.New("gone"), nil, []string{"memory_bytes", "pids"}},
	} {
		var u pando.InstanceUsage
		measure(&u, is.use, is.err)
		text, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range is.has {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: want %s in %s", what, want, text)
			}
		}
		for _, not := range is.lacks {
			if strings.Contains(string(text), not) {
				t.Errorf("%s: %s in %s", what, not, text)
			}
		}
	}
}
