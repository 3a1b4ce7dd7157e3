// Package rig is the test stand of benchmarks that compare ways to the same instances: network
// namespaces, a server, clients, the processor time of every program on the way, and a sheet of
// results. It never decides about the ways.
package rig

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Sheet holds results.csv and the rows of a table.
type Sheet struct {
	t    testing.TB
	out  *csv.Writer
	file *os.File
	// folder is that of the published samples.
	folder string
	rows   []string
	all    map[string][]float64
}

// NewSheet begins results.csv of the folder of the test.
func NewSheet(t testing.TB) *Sheet { return NewSheetIn(t, ".") }

// NewSheetIn begins results.csv of a folder beneath that of the test, for one of several plots. The
// file is elsewhere until it is published, so a run that is cut leaves the former samples.
func NewSheetIn(t testing.TB, folder string) *Sheet {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	s := &Sheet{t: t, out: csv.NewWriter(f), file: f, folder: folder, all: map[string][]float64{}}
	s.write("round", "series", "value")
	return s
}

func (s *Sheet) write(fields ...string) {
	if err := s.out.Write(fields); err != nil {
		s.t.Fatal(err)
	}
	s.out.Flush()
}

// Note adds the value of a series in a round.
func (s *Sheet) Note(round int, series string, value float64) {
	s.write(strconv.Itoa(round), series, fmt.Sprintf("%.4g", value))
	s.all[series] = append(s.all[series], value)
}

// Median returns the median of a series.
func (s *Sheet) Median(series string) float64 { return middle(s.all[series]) }

// Values returns the values of a series, in the order of the rounds.
func (s *Sheet) Values(series string) []float64 { return s.all[series] }

// Ratio returns the median of the ratios of two series, round by round.
func (s *Sheet) Ratio(a, b string) float64 {
	var out []float64
	for n := range min(len(s.all[a]), len(s.all[b])) {
		out = append(out, s.all[a][n]/s.all[b][n])
	}
	return middle(out)
}

func middle(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// Row adds a row of the published table. A row without a goal is stated.
func (s *Sheet) Row(measure, goal, paper, measured string, held bool) {
	verdict := map[bool]string{true: "held", false: "missed"}[held]
	if goal == "" {
		verdict = "stated"
	}
	s.rows = append(s.rows, "--row",
		fmt.Sprintf("%s | %s | %s | %s | %s", measure, goal, paper, measured, verdict))
	s.t.Logf("%s: %s (goal %q, paper %q) %s", measure, measured, goal, paper, verdict)
}

// Publish keeps the samples, draws the plot and writes the rows into bench/README.md. With
// PANDO_SMOKE it only ends the sheet: a short run proves the program and publishes no figure.
func (s *Sheet) Publish(name, title, unit string, flags ...string) {
	s.t.Helper()
	if err := s.file.Close(); err != nil {
		s.t.Fatal(err)
	}
	if Smoke() {
		return
	}
	samples, err := os.ReadFile(s.file.Name())
	if err == nil {
		err = os.WriteFile(filepath.Join(s.folder, "results.csv"), samples, 0o644)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	args := append([]string{name, "--title", title, "--unit", unit}, append(flags, s.rows...)...)
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
}

// Smoke reports whether this is a short run that publishes nothing (PANDO_SMOKE=1).
func Smoke() bool { return os.Getenv("PANDO_SMOKE") != "" }

// Rounds returns the number of rounds, and the time of one measurement.
func Rounds(rounds int, lasts time.Duration) (int, time.Duration) {
	if Smoke() {
		return 1, lasts / 6
	}
	return rounds, lasts
}
