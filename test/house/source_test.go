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

// sources parses every Go file of the module. Folders with a go.mod of their own stand apart.
func sources(t *testing.T) []source {
	t.Helper()
	root := filepath.Join("..", "..")
	fset := token.NewFileSet()
	var all []source
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(name, filepath.ToSlash(rel))
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		file, err := parser.ParseFile(fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{rel, path.Dir(rel), string(text), ast.IsGenerated(file), file, fset})
		return nil
	})
	if err != nil {
		t.Fatalf("read the module's sources: %v", err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d Go files below %s: the test is looking in the wrong place", len(all), root)
	}
	return all
}

func skipDir(name, rel string) error {
	if rel == "." {
		return nil
	}
	base := path.Base(rel)
	if strings.HasPrefix(base, ".") || base == "testdata" || rel == "web" || rel == "target" || rel == "bin" {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}
