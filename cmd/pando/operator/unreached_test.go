package operator

import (
	"strings"
	"testing"

	"pando.run/pando"
)

func TestHostsNameThoseOutOfReach(t *testing.T) {
	var out strings.Builder
	hosts(&out, []pando.HostStatus{{
		Host: pando.Host{Name: "one"}, Losses: &pando.Losses{Unreached: "1 host is out of reach"},
	}}, noon)
	const want = "one steers around hosts: 1 host is out of reach\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("no line %q in:\n%s", want, out.String())
	}
}
