//go:build bench

package fractal

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"pando.run/pando/lab/labtest"
)

// sheet holds the curves of a figure and the rows of its table.
type sheet struct {
	t      *testing.T
	folder string
	file   *os.File
	out    *csv.Writer
	rows   []string
	kept   map[string][]float64
}

// newSheet begins the samples of a figure. They reach its folder when they are published.
func newSheet(t *testing.T, folder string) *sheet {
	f, err := os.Create(filepath.Join(t.TempDir(), "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	s := &sheet{t: t, folder: folder, file: f, out: csv.NewWriter(f), kept: map[string][]float64{}}
	s.write("round", "series", "x", "value")
	return s
}

func (s *sheet) write(cells ...string) {
	if err := s.out.Write(cells); err != nil {
		s.t.Fatal(err)
	}
}

// note adds a point of a curve in a round.
func (s *sheet) note(round int, series string, x, value float64) {
	s.write(fmt.Sprint(round), series, fmt.Sprintf("%g", x), fmt.Sprintf("%.4g", value))
}

// keep remembers a value of a round for the rows.
func (s *sheet) keep(name string, value float64) { s.kept[name] = append(s.kept[name], value) }

func (s *sheet) median(name string) float64 {
	all := slices.Sorted(slices.Values(s.kept[name]))
	if len(all) == 0 {
		return 0
	}
	return all[len(all)/2]
}

// row adds a row of the table. A row without a goal is stated.
func (s *sheet) row(measure, goal, paper, measured string, held bool) {
	verdict := map[bool]string{true: "held", false: "missed"}[held]
	if goal == "" {
		verdict = "stated"
	}
	s.rows = append(s.rows, "--row", fmt.Sprintf("%s | %s | %s | %s | %s", measure, goal, paper,
		measured, verdict))
	s.t.Logf("%s: %s (%s) %s", measure, measured, goal, verdict)
}

func (s *sheet) publish(title, unit, x string) {
	s.out.Flush()
	if s.t.Failed() || os.Getenv("BENCH_DRY") != "" {
		return
	}
	samples, err := os.ReadFile(s.file.Name())
	if err == nil {
		err = os.MkdirAll(s.folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(s.folder, "results.csv"), samples, 0o644)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	args := append([]string{"cluster/fractal/" + s.folder, "--title", title, "--unit", unit, "--x", x},
		s.rows...)
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
}

// site deploys the website of the examples, which asks for a copy at the rate high.
func site(t *testing.T, p *labtest.Pando, most int) *labtest.Service {
	t.Helper()
	program := filepath.Join(p.Dir, "website")
	if _, err := os.Stat(program); err != nil {
		build := exec.Command("go", "build", "-trimpath", "-o", program, ".")
		build.Dir, build.Env = "../../../examples/website", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the website: %v\n%s", err, out)
		}
	}
	return p.Deploy(fmt.Sprintf("name: website\ncommand: [./website]\n"+
		"environment: {WEBSITE_HIGH: %d, WEBSITE_LOW: 20}\nports: [\"80:8080\"]\n"+
		"scale: {min: 1, max: %d}\nresources: {cpus: %g}\n", high, most, siteLimit))
}
