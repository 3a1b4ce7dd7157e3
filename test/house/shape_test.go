package house

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// updateShape writes shape.txt anew. A number that rose is never written.
var updateShape = flag.Bool("update-shape", false, "write shape.txt anew, with lower numbers only")

const (
	// methodsMax bounds the methods of a type that embeds another, own and promoted together. A type
	// that embeds nothing has no bound.
	methodsMax = 30
	// upPercentMax bounds the uses between files of a package that point up.
	upPercentMax = 15
)

// TestPackagesHaveAnInnerOrder counts, for each package, the uses between its files that point up in
// the order with the fewest of them. It also counts the methods of types that embed. shape.txt lists
// the packages and types above the bounds; their numbers only fall.
func TestPackagesHaveAnInnerOrder(t *testing.T) {
	t.Parallel()
	found := map[string]int{}
	for _, p := range typed(t) {
		uses := p.uses()
		if up := upward(uses); 100*up > upPercentMax*len(uses) && up > 1 {
			found["up "+p.path] = up
			t.Logf("%s: %d of %d uses between files point up", p.path, up, len(uses))
		}
		for name, methods := range p.methods() {
			if methods > methodsMax {
				found["methods "+p.path+"."+name] = methods
			}
		}
	}
	allowed := readShape(t)
	for _, key := range sortedKeys(found) {
		switch most, listed := allowed[key]; {
		case !listed:
			t.Errorf("%s: %d: too many; see the bounds in test/house/shape_test.go", key, found[key])
			delete(found, key)
		case found[key] > most:
			t.Errorf("%s: %d, at most %d", key, found[key], most)
			found[key] = most
		}
	}
	for _, key := range sortedKeys(allowed) {
		if found[key] < allowed[key] && !*updateShape {
			t.Logf("%s fell from %d to %d: go test ./test/house -update-shape", key, allowed[key],
				found[key])
		}
	}
	if *updateShape {
		writeShape(t, found)
	}
}

// module is one package of the module, with the types of all that it names.
type module struct {
	path  string // from the root of the module, "." for the root
	files []*ast.File
	names []string
	info  types.Info
	types *types.Package
	fset  *token.FileSet
}

// use is a file that names something of another file of its package.
type use struct{ from, to string }

// file returns the name of the file of a position.
func (m module) file(pos token.Pos) string { return filepath.Base(m.fset.Position(pos).Filename) }

// uses returns the pairs of files of which the first names a function, method, type, variable or
// constant of the second. Fields count as their type does. Generated files and doc.go do not count.
func (m module) uses() map[use]bool {
	all := map[use]bool{}
	for name, object := range m.info.Uses {
		if object == nil || object.Pkg() != m.types {
			continue
		}
		_, isMethod := object.(*types.Func)
		if object.Parent() != m.types.Scope() && !isMethod {
			continue
		}
		u := use{m.file(name.Pos()), m.file(object.Pos())}
		if u.from != u.to && slices.Contains(m.names, u.from) && slices.Contains(m.names, u.to) {
			all[u] = true
		}
	}
	return all
}

// methods returns how many methods each type has that embeds another, own and promoted.
func (m module) methods() map[string]int {
	all := map[string]int{}
	for _, name := range m.types.Scope().Names() {
		named, ok := m.types.Scope().Lookup(name).(*types.TypeName)
		if !ok || named.IsAlias() {
			continue
		}
		fields, ok := named.Type().Underlying().(*types.Struct)
		if !ok {
			continue
		}
		for i := range fields.NumFields() {
			if fields.Field(i).Embedded() {
				all[name] = types.NewMethodSet(types.NewPointer(named.Type())).Len()
			}
		}
	}
	return all
}

// upward returns how many uses point up in the best order of the files that a greedy search finds
// (Eades, Lin and Smyth 1993): a file that nothing uses goes to the top, one that uses nothing to
// the bottom, and else the one that uses most beyond what it is used.
func upward(uses map[use]bool) int {
	place, left := map[string]int{}, map[string]bool{}
	for u := range uses {
		left[u.from], left[u.to] = true, true
	}
	top, bottom := 0, len(left)
	for len(left) > 0 {
		down, up := map[string]int{}, map[string]int{}
		for u := range uses {
			if left[u.from] && left[u.to] {
				down[u.from]++
				up[u.to]++
			}
		}
		best, sink := "", ""
		for _, file := range sortedKeys(left) {
			if down[file] == 0 && sink == "" {
				sink = file
			}
			if best == "" || down[file]-up[file] > down[best]-up[best] {
				best = file
			}
		}
		if sink != "" {
			best, bottom = sink, bottom-1
			place[best] = bottom
		} else {
			place[best] = top
			top++
		}
		delete(left, best)
	}
	n := 0
	for u := range uses {
		if place[u.from] > place[u.to] {
			n++
		}
	}
	return n
}

// typed reads the packages of the module without their tests. The types of what they import come
// from the build cache.
func typed(t *testing.T) []module {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-export",
		"-json=ImportPath,Dir,GoFiles,Export,ImportMap,Standard,Module", "./...")
	list.Dir = "../.."
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Start(); err != nil {
		t.Fatal(err)
	}
	exports, fset := map[string]string{}, token.NewFileSet()
	read := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, errors.New("not listed before its importer: " + path)
		}
		return os.Open(exports[path])
	})
	var all []module
	for decoder := json.NewDecoder(out); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
			Module                  *struct{ Main bool }
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			all = append(all, typesOf(t, fset, read, p.ImportPath, p.Dir, p.GoFiles))
		}
	}
	if err := list.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("found %d packages: the test looks in the wrong place", len(all))
	}
	return all
}

func typesOf(
	t *testing.T, fset *token.FileSet, from types.Importer, path, dir string, files []string,
) module {
	t.Helper()
	short := strings.TrimPrefix(strings.TrimPrefix(path, modulePath), "/")
	m := module{path: short, fset: fset, info: types.Info{Uses: map[*ast.Ident]types.Object{}}}
	if short == "" {
		m.path = "."
	}
	for _, name := range files {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if !ast.IsGenerated(file) {
			m.names = append(m.names, name)
		}
		m.files = append(m.files, file)
	}
	config := types.Config{Importer: from, Error: func(err error) { t.Error(err) }}
	m.types, _ = config.Check(path, fset, m.files, &m.info)
	return m
}

const shapeFile = "shape.txt"

const shapeHead = `# What is above the bounds of shape_test.go, as a ratchet: a number only falls.
#   up PACKAGE N                 uses between files of the package that point up
#   methods PACKAGE.TYPE N       methods of a type that embeds, own and promoted
# go test ./test/house -run TestPackagesHaveAnInnerOrder -update-shape writes lower numbers.
`

func readShape(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile(shapeFile)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var kind, name string
		var n int
		if _, err := fmt.Sscan(line, &kind, &name, &n); err != nil {
			t.Fatalf("%s: %q: %v", shapeFile, line, err)
		}
		all[kind+" "+name] = n
	}
	return all
}

func writeShape(t *testing.T, found map[string]int) {
	t.Helper()
	text := shapeHead
	for _, key := range sortedKeys(found) {
		text += fmt.Sprintf("%s %d\n", key, found[key])
	}
	if err := os.WriteFile(shapeFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func sortedKeys[V any](all map[string]V) []string { return slices.Sorted(maps.Keys(all)) }

func TestUsesThatPointUpAreCounted(t *testing.T) {
	for _, c := range []struct {
		what string
		uses []use
		want int
	}{
		{"a line", []use{{"a", "b"}, {"b", "c"}, {"a", "c"}}, 0},
		{"a pair", []use{{"a", "b"}, {"b", "a"}}, 1},
		{"a ring", []use{{"a", "b"}, {"b", "c"}, {"c", "a"}}, 1},
		{"two rings that share a file", []use{{"a", "b"}, {"b", "a"}, {"a", "c"}, {"c", "a"}}, 2},
	} {
		uses := map[use]bool{}
		for _, u := range c.uses {
			uses[u] = true
		}
		if got := upward(uses); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}
