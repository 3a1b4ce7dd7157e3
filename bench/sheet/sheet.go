// Package sheet keeps the samples of a benchmark and the rows of its table. It ends by publishing
// both: results.csv and plot.svg in the folder of the benchmark, and a section of the room's page.
// It never decides which measurement is good.
package sheet

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

// Sheet holds results.csv and the rows of a table. The file is elsewhere until it is published, so
// a run that is cut leaves the former samples.
type Sheet struct {
	t      testing.TB
	out    *csv.Writer
	file   *os.File
	folder string // of the published samples, beneath that of the test
	x      string // names the x of curves; "": there are none
	rows   []string
	all    map[string][]float64
}

// New begins the samples of a plot of dots: one value of each series in a round. folder lies
// beneath that of the test and holds the published files; "." is the folder of the test.
func New(t testing.TB, folder string) *Sheet {
	t.Helper()
	return begin(t, folder, "", "round", "series", "value")
}

// Curves begins the samples of a plot of curves. x names their common variable, with its unit.
func Curves(t testing.TB, folder, x string) *Sheet {
	t.Helper()
	return begin(t, folder, x, "round", "series", "x", "value")
}

func begin(t testing.TB, folder, x string, columns ...string) *Sheet {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	s := &Sheet{t: t, out: csv.NewWriter(f), file: f, folder: folder, x: x,
		all: map[string][]float64{}}
	s.write(columns...)
	return s
}

func (s *Sheet) write(fields ...string) {
	if err := s.out.Write(fields); err != nil {
		s.t.Fatal(err)
	}
}

// Note adds the value of a series in a round to a plot of dots.
func (s *Sheet) Note(round int, series string, value float64) {
	s.write(strconv.Itoa(round), series, fmt.Sprintf("%.4g", value))
	s.Keep(series, value)
}

// Point adds a point of a curve in a round. Only kept values reach the rows.
func (s *Sheet) Point(round int, curve string, x, value float64) {
	s.write(strconv.Itoa(round), curve, fmt.Sprintf("%g", x), fmt.Sprintf("%.4g", value))
}

// Keep adds a value of a round to a series for the rows alone.
func (s *Sheet) Keep(series string, value float64) {
	s.all[series] = append(s.all[series], value)
}

// Median returns the median of a series; 0: it has no value.
func (s *Sheet) Median(series string) float64 { return middle(s.all[series]) }

// Quantile returns the value of a series below which a share (0 to 1) of its values lies.
func (s *Sheet) Quantile(series string, share float64) float64 {
	return Quantile(s.all[series], share)
}

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

func middle(all []float64) float64 { return Quantile(all, .5) }

// Quantile returns the value below which a share (0 to 1) of all values lies; 0: there are none.
func Quantile(all []float64, share float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*share))]
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

// Publish keeps the samples, draws the plot and writes the rows into the room's page. A short run
// (PANDO_SMOKE), a dry run (BENCH_DRY) and a failed one only end the sheet. flags are more flags of
// bench/publish.
func (s *Sheet) Publish(title, unit string, flags ...string) {
	s.t.Helper()
	s.out.Flush()
	if err := s.out.Error(); err != nil {
		s.t.Fatal(err)
	}
	if s.t.Failed() || Smoke() || os.Getenv("BENCH_DRY") != "" {
		return
	}
	bench, err := root()
	if err != nil {
		s.t.Fatal(err)
	}
	folder, err := filepath.Abs(s.folder)
	if err != nil {
		s.t.Fatal(err)
	}
	name, err := filepath.Rel(bench, folder)
	if err != nil {
		s.t.Fatal(err)
	}
	samples, err := os.ReadFile(s.file.Name())
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "results.csv"), samples, 0o644)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	args := []string{name, "--title", title, "--unit", unit, "--x", s.x}
	args = append(append(args, flags...), s.rows...)
	out, err := exec.Command(filepath.Join(bench, "publish"), args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
}

// root returns the folder of bench/publish, which is above that of the test.
func root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, e := os.Stat(filepath.Join(dir, "publish")); e == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			err = fmt.Errorf("no folder above this test has bench/publish; run it by its `run`")
		}
		dir = up
	}
	return "", err
}

// Smoke reports whether this is a short run that publishes nothing (PANDO_SMOKE=1).
func Smoke() bool { return os.Getenv("PANDO_SMOKE") != "" }

// Rounds returns the number of rounds, and the time of one measurement. A short run has one round
// of a sixth of the time.
func Rounds(rounds int, lasts time.Duration) (int, time.Duration) {
	if Smoke() {
		return 1, lasts / 6
	}
	return rounds, lasts
}
