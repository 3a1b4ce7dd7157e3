package house

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	openSection = regexp.MustCompile(`^<!-- ([\w/-]+) -->$`)
	seal        = regexp.MustCompile(`\n<!-- sealed ([0-9a-f]{64}) -->$`)
)

// sections adds the sections of a page to out, by the name of their benchmark.
func sections(t *testing.T, page, whole string, out map[string]string) {
	t.Helper()
	name, body := "", []string{}
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
		t.Errorf("%s: section %s has no end", page, name)
	}
}

// unsealed returns the reason why a section does not have the figures of its run, or "".
func unsealed(body string, results []byte) string {
	m := seal.FindStringSubmatch(body)
	if m == nil {
		return "it has no seal: run the benchmark"
	}
	text := strings.TrimSuffix(body, m[0])
	digest := sha256.Sum256(append([]byte(text+"\n"), results...))
	if m[1] != hex.EncodeToString(digest[:]) {
		return "a row was edited by hand, or results.csv was not published: run the benchmark"
	}
	return ""
}

// TestFiguresComeFromRuns holds the pages of bench/ against the samples: each section is as
// bench/publish wrote it for the results.csv beside it, and each results.csv has a section.
func TestFiguresComeFromRuns(t *testing.T) {
	bench := filepath.Join("..", "..", "bench")
	pages, err := filepath.Glob(filepath.Join(bench, "*", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, page := range pages {
		whole, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		sections(t, page, string(whole), all)
	}
	if len(all) < 20 {
		t.Fatalf("found %d sections: the test does not read the pages of bench/", len(all))
	}
	for name, body := range all {
		results, err := os.ReadFile(filepath.Join(bench, name, "results.csv"))
		if err != nil {
			t.Errorf("section %s: %v", name, err)
			continue
		}
		if reason := unsealed(body, results); reason != "" {
			t.Errorf("section %s: %s", name, reason)
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
			t.Errorf("%s: no page of bench/ has a section for it", file)
		}
	}
}

// TestProseQuotesPublishedFigures holds each figure in the prose of README.md against the row that it
// comes from. The first group of both patterns is the figure.
func TestProseQuotesPublishedFigures(t *testing.T) {
	for _, c := range []struct{ quoted, page, published string }{
		{`copy answers\s+its first request (\d+) ms later`, "service", `new process · [\d.]+ × \(([\d.]+) ms`},
		{`\((\d+) ms from a warm reserve\)`, "service", `warm, against\s[^·]*· [\d.]+ × \(([\d.]+) ms`},
		{`broke (0 of [\d,]+) connections`, "service", `2,000 open · (0 of \d+)`},
		{`and (0 of [\d,]+)\s+new connections`, "service", `answered within it · (0 of \d+)`},
	} {
		here := figureIn(t, "README.md", c.quoted)
		there := figureIn(t, filepath.Join("bench", c.page, "README.md"), c.published)
		if here != there {
			t.Errorf("README.md says %s, and bench/%s/README.md %s", here, c.page, there)
		}
	}
}

// figureIn returns the figure that a pattern finds in a file, rounded and without commas.
func figureIn(t *testing.T, file, pattern string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", file))
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(string(text)), " ")
	found := regexp.MustCompile(pattern).FindStringSubmatch(words)
	if found == nil {
		t.Fatalf("%s has nothing like %s", file, pattern)
	}
	plain := strings.ReplaceAll(found[1], ",", "")
	if n, err := strconv.ParseFloat(plain, 64); err == nil {
		return strconv.Itoa(int(math.Round(n)))
	}
	return plain
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
