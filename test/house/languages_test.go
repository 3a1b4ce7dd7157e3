package house

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	cratePath = regexp.MustCompile(`(?m)^[\w-]+ = \{.*\bpath = "([^"]+)"`)
	included  = regexp.MustCompile(
		`(?:#include|include_str!\(|include_bytes!\(|include!\()\s*"(\.\.?/[^"]+)"`)
	pythonImport = regexp.MustCompile(`^\s*(?:import|from) (\w+)`)
)

// need is one dependency between two folders of the tree, in a language other than Go.
type need struct{ file, from, to string }

// TestEveryLanguageImportsDownward applies the ranks to Rust crates, included files and Python
// modules. TestImportsPointDownward applies them to Go packages.
func TestEveryLanguageImportsDownward(t *testing.T) {
	all := texts(t)
	needs := append(crates(t), includes(all)...)
	needs = append(needs, modules(all)...)
	if len(needs) < 20 {
		t.Fatalf("found %d dependencies: the test looks in the wrong place", len(needs))
	}
	for _, n := range needs {
		if rule := breach(n.from, n.to); rule != "" {
			t.Errorf("%s needs %s: %s", n.file, n.to, rule)
		}
	}
}

// top returns the first folder of a path. A crate belongs to it: the Go loop in function/group
// has a rank of its own, and crates beside it have the rank of function.
func top(file string) string {
	first, _, _ := strings.Cut(file, "/")
	return first
}

// crates returns the dependencies between the crates of the tree.
func crates(t *testing.T) (out []need) {
	files, err := filepath.Glob("../../*/*/Cargo.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no Cargo.toml below the rooms (%v)", err)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file := strings.TrimPrefix(filepath.ToSlash(name), "../../")
		for _, m := range cratePath.FindAllStringSubmatch(string(content), -1) {
			if strings.HasPrefix(m[1], ".") {
				to := path.Join(path.Dir(file), m[1])
				out = append(out, need{file, top(file), top(to)})
			}
		}
	}
	return out
}

// includes returns the files that C and Rust sources include by a relative path.
func includes(all []text) (out []need) {
	for _, x := range all {
		if x.language != "c" && x.language != "rust" {
			continue
		}
		dir := path.Dir(x.path)
		for _, line := range x.lines {
			if m := included.FindStringSubmatch(line); m != nil {
				out = append(out, need{x.path, dir, path.Dir(path.Join(dir, m[1]))})
			}
		}
	}
	return out
}

// modules returns the imports of Python modules that lie in the tree.
func modules(all []text) (out []need) {
	where := map[string]string{}
	for _, x := range all {
		if x.language == "python" && strings.HasSuffix(x.path, ".py") {
			where[strings.TrimSuffix(path.Base(x.path), ".py")] = path.Dir(x.path)
		}
	}
	for _, x := range all {
		if x.language != "python" {
			continue
		}
		for _, line := range x.lines {
			m := pythonImport.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			if to, ours := where[m[1]]; ours {
				out = append(out, need{x.path, path.Dir(x.path), to})
			}
		}
	}
	return out
}
