package report

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func written(t *testing.T, p Page) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("the page lacks %q:\n%s", part, text)
		}
	}
}

func TestAReportThatCannotBeWrittenIsToldBeforeTheRun(t *testing.T) {
	dir := t.TempDir()
	err := Possible(filepath.Join(dir, "none", "demo.html"))
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--report") {
		t.Errorf("a folder that is not there gives %v", err)
	}
	name := filepath.Join(dir, "demo.html")
	if err := Possible(name); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(name); err == nil {
		t.Error("the attempt has left a file")
	}
	if err := os.WriteFile(name, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Save(name, Page{}); err == nil || !strings.Contains(err.Error(), "is no report") {
		t.Errorf("a file of another program is replaced: %v", err)
	}
	if now, err := os.ReadFile(name); err != nil || string(now) != "before" {
		t.Errorf("the file of another program is %q now, %v", now, err)
	}
	last := filepath.Join(dir, "last.html")
	for range 2 {
		if err := Save(last, Page{Title: "run"}); err != nil {
			t.Errorf("the last report is in the way: %v", err)
		}
	}
}

func TestThePageShowsWhatItIsGivenAndEscapesIt(t *testing.T) {
	text := written(t, Page{
		Title: "a <run>",
		Charts: []Chart{
			{Title: "rate", Lines: []Line{{Name: "offered", Points: []Point{{0, 0}, {10, 50}}}}},
		},
		Checks: []Check{{Name: "answered", Detail: "49 of 50"}},
	})
	want(t, text, "a &lt;run&gt;", `d="M104.0 196.0L944.0 12.0"`, "✗ FAILED", "a check FAILED",
		"49 of 50")
}

func TestStepsHoldTheirValue(t *testing.T) {
	c := Chart{Step: true, Lines: []Line{{Points: []Point{{0, 1}, {5, 2}, {10, 2}}}}}
	if got := c.Path(c.Lines[0]); got != "M104.0 104.0H524.0L524.0 12.0H944.0L944.0 12.0" {
		t.Fatalf("the path of a step is %s", got)
	}
}

func TestALogarithmicScaleEndsAtPowersOfTen(t *testing.T) {
	c := Chart{Log: true, Lines: []Line{{Points: []Point{{0, 0.4}, {1, 30}}}}}
	var labels []string
	for _, r := range c.Rows() {
		labels = append(labels, r.Label)
	}
	if got := strings.Join(labels, " "); got != "0.1 1 10 100" {
		t.Fatalf("its ticks are %s", got)
	}
}

func TestLivesShareTheTimeAxisOfTheCharts(t *testing.T) {
	p := Page{
		Charts: []Chart{{Lines: []Line{{Points: []Point{{20, 1}}}}}},
		Lives:  Lives{Rows: []Life{{Name: "a", Spans: []Span{{"starting", 0, 10}, {"serving", 10, 20}}}}},
	}
	bars := p.Rows()[0].Bars
	if bars[0].X != left || bars[1].X != (left+right)/2 || bars[1].X+bars[1].Width != right {
		t.Fatalf("bars %+v do not end at the edges of the plot", bars)
	}
}
