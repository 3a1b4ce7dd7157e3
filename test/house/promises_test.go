package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPromisesNameTests compares the list of promises that `make test` runs with the tests below
// test/. A name without a test would leave its promise untested in silence.
func TestPromisesNameTests(t *testing.T) {
	there := map[string]bool{}
	for _, s := range sources(t) {
		if !s.isTest() || !strings.HasPrefix(s.path, "test/") {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				there[f.Name.Name] = true
			}
		}
	}
	list, err := os.ReadFile(filepath.Join("..", "promises"))
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for line := range strings.Lines(string(list)) {
		name, promise, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(line, "#"):
		case !there[name]:
			t.Errorf("test/promises: there is no test %q", name)
		case strings.TrimSpace(promise) == "":
			t.Errorf("test/promises: %s names no promise", name)
		default:
			named++
		}
	}
	if named < 20 {
		t.Errorf("test/promises names %d tests: the test does not read it", named)
	}
}
