package requests

import (
	"strings"
	"testing"

	"pando.run/pando/control/decide/decidetest"
)

func TestAnOperatorNamesAnOrdinal(t *testing.T) {
	tb := decidetest.FormedGroup(t)
	svc := tb.W.Services[web].V
	for name, want := range map[string]int{"web-2": 3, "0": 1, "web-3": 0, "db-1": 0, "-1": 0} {
		if n, err := ordinal(tb.W, svc, name); n != want || (err == nil) != (want > 0) {
			t.Errorf("%s is ordinal %d (%v), want %d", name, n, err, want)
		}
	}
	plain := decidetest.Serving(t)
	_, err := ordinal(plain.W, plain.W.Services[web].V, "web-0")
	if err == nil || !strings.Contains(err.Error(), "kind: stateful") {
		t.Errorf("a service of equal instances: %v", err)
	}
}
