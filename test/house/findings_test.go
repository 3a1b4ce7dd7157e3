package house

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// citation is a test that a list of findings names, with the folder or the file before it.
type citation struct{ place, name string }

var (
	item = regexp.MustCompile(`(?m)^- `)
	// A place is a path or "the root's". A Go test has its usual name. A name of Rust, Python or C
	// has underscores and stands in quotes.
	cited = regexp.MustCompile("`([\\w./-]+)`|(the\\s+root's)|" +
		"\\b((?:Test|Fuzz)[A-Z]\\w*)|\"(\\w+_\\w+)\"")
)

// citations returns the tests that a list of findings names.
func citations(text string) (all []citation) {
	for _, one := range item.Split(text, -1) {
		place := ""
		for _, m := range cited.FindAllStringSubmatch(one, -1) {
			switch {
			case m[1] != "":
				place = m[1]
			case m[2] != "":
				place = "."
			default:
				all = append(all, citation{place, m[3] + m[4]})
			}
		}
	}
	return all
}

// tests holds the names of functions: of Go by folder, of other languages by file.
type tests map[string][]string

// missing returns the error of a citation that leads nowhere, or "".
func (t tests) missing(c citation) string {
	switch names, known := t[c.place]; {
	case c.place == "":
		return fmt.Sprintf("%s has no folder before it", c.name)
	case !known:
		return fmt.Sprintf("%s: there is no folder or file %s with tests", c.name, c.place)
	case !slices.Contains(names, c.name):
		return fmt.Sprintf("%s has no test %s", c.place, c.name)
	}
	return ""
}

// heading finds the functions of a file in Rust, C, Python or shell.
var heading = regexp.MustCompile(`(?m)^\s*(?:pub |async |static )*(?:fn|def|int|void) (\w+)\(`)

// everyTest returns the tests of the tree.
func everyTest(t *testing.T) tests {
	all := tests{}
	for _, s := range sources(t) {
		if !s.isTest() {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				all[s.dir] = append(all[s.dir], f.Name.Name)
			}
		}
	}
	for _, f := range texts(t) {
		switch f.language {
		case "rust", "c", "python":
			for _, m := range heading.FindAllStringSubmatch(strings.Join(f.lines, "\n"), -1) {
				all[f.path] = append(all[f.path], m[1])
			}
		}
	}
	return all
}

// TestAttacksNameTestsThatExist holds the list of docs/security.md against the tree.
func TestAttacksNameTestsThatExist(t *testing.T) {
	const least = 50
	all := everyTest(t)
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := citations(string(text))
	if len(named) < least {
		t.Fatalf("found %d tests in docs/security.md, want at least %d", len(named), least)
	}
	for _, c := range named {
		if reason := all.missing(c); reason != "" {
			t.Errorf("docs/security.md: %s", reason)
		}
	}
}

func TestAnInventedTestIsFound(t *testing.T) {
	all := tests{"agent": {"TestA"}, ".": {"TestRoot"}, path.Join("memory", "a.rs"): {"it_works"}}
	text := "# Title\n\n- **F1** the finding: `agent` TestA, the root's TestRoot\n" +
		"- **F2** a `word`: `memory/a.rs` \"it_works\", `agent`\n  TestA\n"
	good := citations(text)
	if len(good) != 4 {
		t.Fatalf("found %v", good)
	}
	for _, c := range good {
		if reason := all.missing(c); reason != "" {
			t.Error(reason)
		}
	}
	for _, bad := range []string{
		"- `agent` TestInvented", "- `control` TestA", "- TestA", "- `memory/a.rs` \"it_fails\"",
		"- `agent` TestA\n- TestA of the item before",
	} {
		found := ""
		for _, c := range citations(bad) {
			found += all.missing(c)
		}
		if found == "" {
			t.Errorf("%q: no fault is found", bad)
		}
	}
}
