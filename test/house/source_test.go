package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const modulePath = "pando.run/pando"

// source is one Go file of the main module, parsed with its comments.
type source struct {
	path      string // relative to the module's root, with slashes
	dir       string // "." for the root package
	text      string
	generated bool
	file      *ast.File
	fset      *token.FileSet
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// sources returns every Go file of the module. Folders with a go.mod of their own stand apart. All
// tests share the files and change nothing in them.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatalf("read the tree: %v", err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d Go files: the test looks in the wrong place", len(all))
	}
	return all
}

var parsed = sync.OnceValues(func() ([]source, error) {
	fset := token.NewFileSet()
	var all []source
	err := walkTree(func(name, rel string, d fs.DirEntry) error {
		if d.IsDir() {
			return skipDir(name, rel)
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{rel, path.Dir(rel), string(text), ast.IsGenerated(file), file, fset})
		return nil
	})
	return all, err
})

// walk calls visit for every file and folder of the tree. rel is the path from the root, with
// slashes. visit returns fs.SkipDir to leave out a folder.
func walk(t *testing.T, visit func(name, rel string, d fs.DirEntry) error) {
	t.Helper()
	if err := walkTree(visit); err != nil {
		t.Fatalf("read the tree: %v", err)
	}
}

func walkTree(visit func(name, rel string, d fs.DirEntry) error) error {
	root := filepath.Join("..", "..")
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		return visit(name, filepath.ToSlash(rel), d)
	})
}

func skipDir(name, rel string) error {
	if rel == "." {
		return nil
	}
	base := path.Base(rel)
	if strings.HasPrefix(base, ".") || base == "testdata" || rel == "web" || rel == "target" ||
		rel == "bin" {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}
