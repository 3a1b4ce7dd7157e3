package agent

import (
	"strings"
	"testing"
)

func TestAPositionIsTheLastWord(t *testing.T) {
	for output, want := range map[string]string{
		"a:7":                             "a:7",
		"starting\nrecovered\na:7\n\n":    "a:7",
		"WSREP: Recovered position: a:12": "a:12",
		"a:7\nbye":                        "",
		"":                                "",
		" \n":                             "",
	} {
		p, err := positionIn(strings.Split(output, "\n"))
		if want == "" && err == nil || want != "" && (err != nil || p.String() != want) {
			t.Errorf("%q has the position %v (%v), want %q", output, p, err, want)
		}
	}
}
