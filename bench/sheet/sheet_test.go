package sheet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fill puts three rounds of two series on a sheet.
func fill(s *Sheet) {
	for round, v := range [][2]float64{{10, 5}, {30, 10}, {16, 4}} {
		s.Note(round, "a", v[0])
		s.Note(round, "b", v[1])
	}
}

func TestASheetComparesRoundByRound(t *testing.T) {
	s := New(t, ".")
	fill(s)
	if m, r := s.Median("a"), s.Ratio("a", "b"); m != 16 || r != 3 {
		t.Errorf("median %g and ratio %g, want 16 and 3", m, r)
	}
	if q := s.Quantile("b", .99); q != 10 {
		t.Errorf("the largest of b is %g, want 10", q)
	}
	if none := s.Median("c"); none != 0 {
		t.Errorf("the median of nothing is %g", none)
	}
}

// bench makes a folder like bench/ with a program publish that notes its arguments.
func bench(t *testing.T) (args string) {
	t.Helper()
	dir := t.TempDir()
	args = filepath.Join(dir, "args")
	program := "#!/bin/sh\nprintf '%s\\n' \"$@\" > " + args + "\n"
	if err := os.WriteFile(filepath.Join(dir, "publish"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "room"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, "room"))
	return args
}

func TestAPlotOfCurvesIsPublishedInItsFolder(t *testing.T) {
	t.Setenv("PANDO_SMOKE", "")
	t.Setenv("BENCH_DRY", "")
	args := bench(t)
	s := Curves(t, "figure", "requests/s")
	s.Point(0, "a curve", 100, 2.5)
	s.Keep("kept", 7)
	s.Row("a measure", "≤ 8", "", "7", s.Median("kept") <= 8)
	s.Publish("A title", "ms", "--log")
	got, err := os.ReadFile(filepath.Join("figure", "results.csv"))
	if want := "round,series,x,value\n0,a curve,100,2.5\n"; err != nil || string(got) != want {
		t.Errorf("the samples are %q, want %q (%v)", got, want, err)
	}
	text, err := os.ReadFile(args)
	want := "room/figure\n--title\nA title\n--unit\nms\n--x\nrequests/s\n--log\n--row\n" +
		"a measure | ≤ 8 |  | 7 | held\n"
	if err != nil || string(text) != want {
		t.Errorf("publish got %q, want %q (%v)", text, want, err)
	}
}

func TestAShortRunPublishesNothing(t *testing.T) {
	args := bench(t)
	for _, name := range []string{"PANDO_SMOKE", "BENCH_DRY"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PANDO_SMOKE", "")
			t.Setenv("BENCH_DRY", "")
			t.Setenv(name, "1")
			s := New(t, "figure")
			fill(s)
			s.Publish("A title", "ms")
			for _, file := range []string{args, filepath.Join("figure", "results.csv")} {
				if _, err := os.Stat(file); err == nil {
					t.Errorf("%s was written", file)
				}
			}
		})
	}
	t.Setenv("PANDO_SMOKE", "1")
	if n, d := Rounds(5, 6); n != 1 || d != 1 {
		t.Errorf("a short run has %d rounds of %d", n, d)
	}
}

func TestASheetNeedsBench(t *testing.T) {
	t.Chdir(t.TempDir())
	if dir, err := root(); err == nil || !strings.Contains(err.Error(), "run it by its `run`") {
		t.Errorf("found %q, %v", dir, err)
	}
}
