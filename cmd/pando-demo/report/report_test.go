package report

import (
	"strings"
	"testing"
)

func TestThePageShowsWhatItIsGivenAndEscapesIt(t *testing.T) {
	var b strings.Builder
	err := Write(&b, Page{Title: "a <run>", Charts: []Chart{{Title: "rate", Lines: []Line{{"offered", []Point{{0, 0}, {10, 50}}}}}},
		Checks: []Check{{Name: "answered", Detail: "49 of 50"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a &lt;run&gt;", `d="M60.0 190.0L700.0 10.0"`, "✗ FAILED", "49 of 50"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, b.String())
		}
	}
}
