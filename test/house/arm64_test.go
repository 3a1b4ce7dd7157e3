package house

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checked is a package as `go list` describes it.
type checked struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // from an import to the package that it is here
	DepOnly         bool              // not of this module
}

// TestTheSourcesAreOfArm64Too checks the types of all packages and their tests as the compiler for
// arm64 does, with its sizes and its numbers of system calls. A build finds the same, but compiles
// every dependency once more, which takes minutes. `make soak` does that.
func TestTheSourcesAreOfArm64Too(t *testing.T) {
	if testing.Short() {
		t.Skip("it reads every dependency: make test-all runs it")
	}
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "-test",
		"-json=ImportPath,Dir,GoFiles,ImportMap,DepOnly", "./...")
	list.Dir = "../.."
	list.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Start(); err != nil {
		t.Fatal(err)
	}
	own, files := 0, token.NewFileSet()
	known := map[string]*types.Package{"unsafe": types.Unsafe}
	for decoder := json.NewDecoder(out); ; {
		var p checked
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		// A package comes after its imports. The main package of a test is generated.
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		known[p.ImportPath] = check(t, files, p, known)
		if !p.DepOnly {
			own++
		}
	}
	if err := list.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d packages, %d of them of this module", len(known), own)
	if own < 50 {
		t.Errorf("only %d packages of this module were found", own)
	}
}

// listed finds the packages that one package imports.
type listed struct {
	of    map[string]string
	known map[string]*types.Package
}

// Import implements types.Importer.
func (i listed) Import(path string) (*types.Package, error) {
	if mapped, ok := i.of[path]; ok {
		path = mapped
	}
	if p := i.known[path]; p != nil {
		return p, nil
	}
	return nil, errors.New("not listed before its importer: " + path)
}

// check returns the types of a package. The bodies of functions of other modules are not looked at.
func check(
	t *testing.T, files *token.FileSet, p checked, known map[string]*types.Package,
) *types.Package {
	t.Helper()
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	config := types.Config{
		Importer:         listed{p.ImportMap, known},
		Sizes:            types.SizesFor("gc", "arm64"),
		IgnoreFuncBodies: p.DepOnly,
		Error: func(err error) {
			if !p.DepOnly {
				t.Error(err)
			}
		},
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // without the test that it is built for
	checked, _ := config.Check(path, files, parsed, nil)
	return checked
}
