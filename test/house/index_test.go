package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheIndexNamesEveryFile holds the root's doc.go against the tree: each place in the index
// exists, and each file of the root with a noun is in the index.
func TestTheIndexNamesEveryFile(t *testing.T) {
	root := filepath.Join("..", "..")
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "doc.go"), nil,
		parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]bool{}
	row := regexp.MustCompile(`(?m)^\t[A-Za-z ]+?\s{2,}(\S+)\s{2,}\S`)
	for _, m := range row.FindAllStringSubmatch(file.Doc.Text(), -1) {
		places[m[1]] = true
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("doc.go: %v", err)
		}
	}
	if len(places) < 8 {
		t.Fatalf("the index has %d places: the test does not read it", len(places))
	}
	files, err := filepath.Glob(filepath.Join(root, "*.go"))
	if err != nil || len(files) < 5 {
		t.Fatalf("found %v (%v)", files, err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if nouns(f) && !strings.HasSuffix(name, "_test.go") && !places[filepath.Base(name)] {
			t.Errorf("%s: doc.go lists no noun of it", name)
		}
	}
}

// nouns reports whether a file exports a type.
func nouns(f *ast.File) bool {
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			return true
		}
	}
	return false
}
