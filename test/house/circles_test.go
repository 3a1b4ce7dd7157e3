package house

import (
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
)

// circlesAllowed is a ratchet: the files of a Rust crate that import each other in a circle. A
// crate without an entry has none. A number may only go down.
var circlesAllowed = map[string]int{}

var (
	rustUse     = regexp.MustCompile(`(?m)^\s*(pub(?:\([a-z: ]+\))?\s+)?use\s+([^;]*);`)
	rustPath    = regexp.MustCompile(`(?:\$?\bcrate|\bsuper|\bself)(?:::\w+)+`)
	rustModule  = regexp.MustCompile(`(?m)^\s*(?:pub(?:\([a-z: ]+\))? )?mod (\w+);`)
	rustComment = regexp.MustCompile(`(?m)/{2}.*$`)
	rustTests   = regexp.MustCompile(`(?s)#\[cfg\(test\)\]\s*mod \w+ \{.*`)
	rustText    = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"`)
)

// TestFilesOfACrateFormNoCircle reads the paths of each Rust file, and fails if files of a crate
// import each other in a circle. A file that declares a module does not import it by that.
func TestFilesOfACrateFormNoCircle(t *testing.T) {
	crates := map[string]map[string]string{}
	for _, x := range texts(t) {
		if crate, module, ok := rustFile(x.path); ok {
			if crates[crate] == nil {
				crates[crate] = map[string]string{}
			}
			crates[crate][module] = rustCode(strings.Join(x.lines, "\n"))
		}
	}
	if len(crates) < 10 {
		t.Fatalf("found %d crates: the test looks in the wrong place", len(crates))
	}
	names := make([]string, 0, len(crates))
	for name := range crates {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		circles := circlesOf(imports(crates[name]))
		files := 0
		for _, c := range circles {
			files += len(c)
		}
		t.Logf("%s: circles between files: %d (%d files)", name, len(circles), files)
		if files > circlesAllowed[name] {
			t.Errorf("%s: %d files are in circles, at most %d: %v",
				name, files, circlesAllowed[name], circles)
		}
		if files < circlesAllowed[name] {
			t.Logf("%s: lower the ratchet from %d to %d", name, circlesAllowed[name], files)
		}
	}
}

// rustFile returns the crate of a source file, and its module as "a::b". The root is "".
func rustFile(file string) (crate, module string, ok bool) {
	crate, inside, ok := strings.Cut(file, "/src/")
	if !ok || path.Ext(inside) != ".rs" || strings.HasPrefix(inside, "bin/") {
		return "", "", false
	}
	module = strings.TrimSuffix(strings.TrimSuffix(inside, ".rs"), "/mod")
	if module == "lib" || module == "main" || module == "mod" {
		module = ""
	}
	return crate, strings.ReplaceAll(module, "/", "::"), true
}

// rustCode returns a source file without comments, texts and the tests at its end.
func rustCode(text string) string {
	text = rustText.ReplaceAllString(rustComment.ReplaceAllString(text, ""), `""`)
	return rustTests.ReplaceAllString(text, "")
}

// imports returns the modules that each module of a crate imports.
func imports(modules map[string]string) map[string][]string {
	out := map[string][]string{}
	for module, text := range modules {
		found := map[string]bool{}
		for _, p := range rustPaths(text) {
			to, ok := resolve(modules, module, p)
			if ok && to != module {
				found[to] = true
			}
		}
		for to := range found {
			out[module] = append(out[module], to)
		}
		sort.Strings(out[module])
	}
	return out
}

// rustPaths returns the paths of a file within its crate: those of its use declarations, spelled
// out, those in its code, and those that begin with a module that the file declares. A name that
// the file passes on by `pub use` counts only if the file itself mentions it.
func rustPaths(text string) (out []string) {
	code := rustUse.ReplaceAllString(text, "")
	for _, use := range rustUse.FindAllStringSubmatch(text, -1) {
		for _, p := range expand("", use[2]) {
			if use[1] == "" || mentions(code, last(p)) {
				out = append(out, p)
			}
		}
	}
	out = append(out, rustPath.FindAllString(code, -1)...)
	for _, m := range rustModule.FindAllStringSubmatch(text, -1) {
		if mentions(code, m[1]+"::") {
			out = append(out, "self::"+m[1])
		}
		for i, p := range out {
			if p == m[1] || strings.HasPrefix(p, m[1]+"::") {
				out[i] = "self::" + p
			}
		}
	}
	return out
}

// mentions reports whether a name occurs in the code, other than behind a path.
func mentions(code, name string) bool {
	return regexp.MustCompile(`(?:^|[^:\w])` + regexp.QuoteMeta(name)).MatchString(code)
}

// last returns the last name of a path.
func last(p string) string { return p[strings.LastIndex(p, ":")+1:] }

// expand returns the paths of one use tree: a::{b, c::d} is a::b and a::c::d.
func expand(prefix, tree string) (out []string) {
	head, rest, braced := strings.Cut(tree, "{")
	if !braced {
		name, _, _ := strings.Cut(strings.TrimSpace(tree), " as ")
		return []string{strings.TrimSuffix(prefix+strings.TrimSpace(name), "::self")}
	}
	depth, from := 0, 0
	rest = rest[:strings.LastIndex(rest, "}")]
	for i, c := range rest + "," {
		switch {
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth == 0:
			if part := strings.TrimSpace(rest[from:min(i, len(rest))]); part != "" {
				out = append(out, expand(prefix+strings.TrimSpace(head), part)...)
			}
			from = i + 1
		}
	}
	return out
}

// resolve returns the module that a path of a module leads to: the longest one that is a file. A
// name that the crate's root imports from a module leads to that module.
func resolve(modules map[string]string, module, p string) (string, bool) {
	at := strings.Split(strings.TrimPrefix(p, "$"), "::")
	var base []string
	if module != "" {
		base = strings.Split(module, "::")
	}
	switch at[0] {
	case "crate":
		base, at = nil, at[1:]
	case "self":
		at = at[1:]
	case "super":
		for len(at) > 0 && at[0] == "super" && len(base) > 0 {
			base, at = base[:len(base)-1], at[1:]
		}
	default:
		return "", false
	}
	full := slices.Concat(base, at)
	for n := len(full); n >= len(base); n-- {
		if name := strings.Join(full[:n], "::"); has(modules, name) {
			return forwarded(modules, name, full[n:]), true
		}
	}
	return "", false
}

func has(modules map[string]string, name string) bool {
	_, ok := modules[name]
	return ok
}

// forwarded returns the module behind a name that a module only passes on by `pub use`.
func forwarded(modules map[string]string, module string, rest []string) string {
	if len(rest) == 0 {
		return module
	}
	for _, use := range rustUse.FindAllStringSubmatch(modules[module], -1) {
		for _, p := range expand("", use[2]) {
			if use[1] == "" || last(p) != rest[0] {
				continue
			}
			first, _, _ := strings.Cut(p, "::")
			if has(modules, strings.TrimPrefix(module+"::"+first, "::")) {
				p = "self::" + p
			}
			if to, ok := resolve(modules, module, strings.TrimSuffix(p, "::"+rest[0])); ok {
				return to
			}
		}
	}
	return module
}

// circlesOf returns the groups of nodes that reach each other (Tarjan's algorithm).
func circlesOf(edges map[string][]string) (out [][]string) {
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, on[v] = append(stack, v), true
		for _, w := range edges[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if on[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		at := slices.Index(stack, v)
		circle := slices.Clone(stack[at:])
		for _, w := range circle {
			on[w] = false
		}
		stack = stack[:at]
		if len(circle) > 1 {
			sort.Strings(circle)
			out = append(out, circle)
		}
	}
	nodes := make([]string, 0, len(edges))
	for v := range edges {
		nodes = append(nodes, v)
	}
	sort.Strings(nodes)
	for _, v := range nodes {
		if index[v] == 0 {
			visit(v)
		}
	}
	return out
}

func TestCirclesAreFoundInRust(t *testing.T) {
	for _, c := range []struct {
		name    string
		modules map[string]string
		want    int
	}{
		{"a line of imports:", map[string]string{
			"": "mod a;\nmod b;\nfn main() { a::f() }", "a": "use crate::b::G;", "b": "pub struct G;"}, 0},
		{"two files:", map[string]string{
			"": "", "a": "use crate::b::G;", "b": "fn f() { crate::a::f() }"}, 2},
		{"three files, one in braces:", map[string]string{
			"": "", "a": "use crate::{\n    b::{self, G},\n    x,\n};",
			"b": "use super::c::H;", "c": "use crate::a;"}, 3},
		{"a file and the one below it:", map[string]string{
			"": "", "a": "mod b;\nuse b::G;\nstruct F(G);", "a::b": "use super::F;"}, 2},
		{"a file that passes names on:", map[string]string{
			"": "mod a;\nmod b;\npub use a::F;", "a": "pub struct F;", "b": "use crate::F;"}, 0},
		{"a file that passes names on and uses them:", map[string]string{
			"": "mod b;\npub use b::F;\npub struct G(F);", "b": "use crate::G;"}, 2},
		{"comments, texts and tests:", map[string]string{
			"": "", "b": "use crate::a;", "a": rustCode("/" + "/ crate::b\n" +
				"const T: &str = \"crate::b\";\n" +
				"#[cfg(test)]\nmod tests {\n    use crate::b;\n}")}, 0},
	} {
		files := 0
		for _, circle := range circlesOf(imports(c.modules)) {
			files += len(circle)
		}
		if files != c.want {
			t.Errorf("%s %d files in circles, want %d: %v", c.name, files, c.want, imports(c.modules))
		}
	}
}
