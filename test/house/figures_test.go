package house

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	openSection = regexp.MustCompile(`^<!-- ([\w/-]+) -->$`)
	seal        = regexp.MustCompile(`\n<!-- sealed ([0-9a-f]{64}) -->$`)
)

// sections returns the sections of bench/README.md by the name of their benchmark.
func sections(t *testing.T, whole string) map[string]string {
	t.Helper()
	out, name, body := map[string]string{}, "", []string{}
	for line := range strings.Lines(whole) {
		line = strings.TrimSuffix(line, "\n")
		switch m := openSection.FindStringSubmatch(line); {
		case name == "" && m != nil:
			name, body = m[1], nil
		case line == "<!-- /"+name+" -->":
			out[name], name = strings.Join(body, "\n"), ""
		default:
			body = append(body, line)
		}
	}
	if name != "" {
		t.Errorf("bench/README.md: section %s has no end", name)
	}
	delete(out, "summary")
	return out
}

// unsealed returns the reason why a section does not have the figures of its run, or "".
func unsealed(body string, results []byte) string {
	m := seal.FindStringSubmatch(body)
	if m == nil {
		return "it has no seal: `bench/publish --summary` seals a new section"
	}
	text := strings.TrimSuffix(body, m[0])
	digest := sha256.Sum256(append([]byte(text+"\n"), results...))
	if m[1] != hex.EncodeToString(digest[:]) {
		return "a row was edited by hand, or results.csv was not published: run the benchmark"
	}
	return ""
}

// TestFiguresComeFromRuns holds bench/README.md against the samples: each section is as
// bench/publish wrote it for the results.csv beside it, and each results.csv has a section.
func TestFiguresComeFromRuns(t *testing.T) {
	bench := filepath.Join("..", "..", "bench")
	whole, err := os.ReadFile(filepath.Join(bench, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := sections(t, string(whole))
	if len(all) < 20 {
		t.Fatalf("found %d sections: the test does not read bench/README.md", len(all))
	}
	for name, body := range all {
		results, err := os.ReadFile(filepath.Join(bench, name, "results.csv"))
		if err != nil {
			t.Errorf("section %s: %v", name, err)
			continue
		}
		if reason := unsealed(body, results); reason != "" {
			t.Errorf("bench/README.md, section %s: %s", name, reason)
		}
		if _, err := os.Stat(filepath.Join(bench, name, "run")); err != nil {
			t.Errorf("section %s: %v", name, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(bench, "*", "*", "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name, err := filepath.Rel(bench, filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		if _, published := all[filepath.ToSlash(name)]; !published {
			t.Errorf("%s: bench/README.md has no section for it", file)
		}
	}
}

func TestAnEditedFigureIsFound(t *testing.T) {
	text, results := "## Idle\n\n| idle | ≤ 2 % | 1.50 % | held |",
		[]byte("round,series,value\n1,idle,1.5\n")
	digest := sha256.Sum256(append([]byte(text+"\n"), results...))
	body := text + "\n<!-- sealed " + hex.EncodeToString(digest[:]) + " -->"
	for _, c := range []struct {
		name, body string
		results    []byte
		good       bool
	}{
		{"as published", body, results, true},
		{"a figure edited", strings.Replace(body, "1.50", "1.05", 1), results, false},
		{"other samples", body, append(results, "2,idle,3\n"...), false},
		{"no seal", text, results, false},
	} {
		if reason := unsealed(c.body, c.results); (reason == "") != c.good {
			t.Errorf("%s: %q", c.name, reason)
		}
	}
}
