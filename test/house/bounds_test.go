package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// boundName is the end of the name of a bound. A room is bounded by more words than Max.
	boundName = regexp.MustCompile(
		`(Max|Most|Each|(^k|K)ept|\wKeep|(^k|K)eeping|(^b|B)urst|Buckets|Per(Second|Minute)|(^a|A)tOnce|` +
			`Cap|Limit|Ranges|Records|Backlog|Depth|Places|Slots|Room|Capacity|Budget|Quota|Queue|Entries)$`)
	// A wait, an age or a number of tries is no room that one tenant takes from another.
	notRoom = regexp.MustCompile(`(Wait|Seconds|Silence|Age|Life|Pause|Late|Alive|Tries|Answer|Last)(Max|AtMost|Most)$`)
	owned   = regexp.MustCompile(`^(each|share|cluster|not shared|open): \S`)
)

// openMax is a ratchet: the bounds that tenants share without a share of each. It may only go down.
const openMax = 0

// boundless are the rooms without bounds of a host or a cluster: they are not installed.
var boundless = regexp.MustCompile(`^(bench|test|demo|lab|examples|sdk|deploy)(/|$)`)

// bounds returns the bounds of the sources as dir.name: constants and variables with the name of a
// bound, other than times and words, and every Bound of a share or of turns.
func bounds(s source) (names []string) {
	for _, d := range s.file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST && g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			for n, name := range v.Names {
				shared := n < len(v.Values) && isShare(v.Values[n])
				room := boundName.MatchString(name.Name) && !notRoom.MatchString(name.Name) &&
					(n >= len(v.Values) || !isTime(v.Values[n]) && !isText(v.Values[n]))
				if shared || room {
					names = append(names, s.dir+"."+name.Name)
				}
			}
		}
	}
	return names
}

// isShare reports whether a value is a share.Bound.
func isShare(e ast.Expr) bool {
	c, ok := e.(*ast.CompositeLit)
	if !ok {
		return false
	}
	s, ok := c.Type.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Bound"
}

// isTime reports whether a value is a time. A struct that has a time bounds something else as well.
func isTime(e ast.Expr) (found bool) {
	if _, several := e.(*ast.CompositeLit); several {
		return false
	}
	ast.Inspect(e, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if p, ok := s.X.(*ast.Ident); ok && p.Name == "time" {
				found = true
			}
		}
		return !found
	})
	return found
}

// isText reports whether a value is text, a list, or made by a function, such as an error:
// none is a number of places.
func isText(e ast.Expr) (found bool) {
	switch v := e.(type) {
	case *ast.CompositeLit:
		_, list := v.Type.(*ast.ArrayType)
		return list
	case *ast.CallExpr:
		id, ok := v.Fun.(*ast.Ident)
		return !ok || types.Universe.Lookup(id.Name) == nil // neither int64(x) nor max(x, y)
	}
	ast.Inspect(e, func(n ast.Node) bool {
		l, ok := n.(*ast.BasicLit)
		found = found || ok && l.Kind == token.STRING
		return !found
	})
	return found
}

// readOwners returns the table of the bounds: a name and its owner on each line.
func readOwners(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("bounds.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, owner, _ := strings.Cut(line, " ")
		if _, twice := out[name]; twice {
			t.Errorf("bounds.txt: %s is there twice", name)
		}
		out[name] = strings.TrimSpace(owner)
	}
	return out
}

// filled is the test at the end of a row.
var filled = regexp.MustCompile(` \((\S+) (Test\w+)\)$`)

// hasTest reports whether the test that a row names is there.
func hasTest(t *testing.T, owner string) bool {
	m := filled.FindStringSubmatch(owner)
	if m == nil {
		return false
	}
	for _, s := range sources(t) {
		if s.isTest() && s.dir == m[1] && slices.ContainsFunc(s.file.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Name.Name == m[2]
		}) {
			return true
		}
	}
	return false
}

// TestEveryBoundHasAnOwner holds bounds.txt against the sources. A bound that all tenants share
// without a share of each is one tenant's way to stop all others.
func TestEveryBoundHasAnOwner(t *testing.T) {
	owners, found := readOwners(t), map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || boundless.MatchString(s.dir) || strings.Contains(s.path, "_bpfel") {
			continue
		}
		for _, name := range bounds(s) {
			found[name] = true
			switch owner, known := owners[name]; {
			case !known:
				t.Errorf("%s: the bound %s is not in test/house/bounds.txt: name its owner there. Give it a "+
					"share for each tenant (access/share) if tenants share it", s.path, name)
			case !owned.MatchString(owner):
				t.Errorf("bounds.txt: %s has the owner %q: want each, share, cluster, not shared or open, "+
					"with a reason", name, owner)
			}
		}
	}
	open := 0
	for name, owner := range owners {
		if strings.HasPrefix(owner, "share:") && !hasTest(t, owner) {
			t.Errorf("bounds.txt: %s has a share, and no test fills it: end its row with (FOLDER TestNAME)", name)
		}
		if strings.HasPrefix(owner, "open:") {
			open++
		}
		if !found[name] {
			t.Errorf("bounds.txt: there is no bound %s", name)
		}
	}
	if open != openMax {
		t.Errorf("%d bounds are open, and openMax is %d: it may only go down", open, openMax)
	}
	if len(found) < 100 {
		t.Errorf("found %d bounds: the test does not read them", len(found))
	}
}

// A bound is found by each of its names, and what bears such a name and is no number of places is left
// out.
func TestBoundsAreFoundByEachName(t *testing.T) {
	const text = "package x\n" +
		"const (\n a = 1\n oneMax = 1\n filesKept = 3\n failBuckets = 9\n linesPerSecond = 5\n asksAtOnce = 7\n" +
		" decisionsMost = 1 << 17\n waitMax = 3\n logAgeMax = 4\n nameMax = \"x\"\n logRecords = Root + \"/x\"\n)\n" +
		"var (\n kept = keeping{age: 7 * time.Hour}\n turnWait = 3 * time.Second\n idleKept = 3 * time.Second\n" +
		" logTurns = turns.Bound{Total: 1}\n ErrNoRoom = errors.New(\"full\")\n listSlots = []int{1}\n" +
		" half = share.Bound{Total: 1}\n)\n"
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"x.oneMax", "x.filesKept", "x.failBuckets", "x.linesPerSecond", "x.asksAtOnce",
		"x.decisionsMost", "x.kept", "x.logTurns", "x.half"}
	if got := bounds(source{dir: "x", file: f}); !slices.Equal(got, append(want[:6:6], append([]string{"x.waitMax"}, want[6:]...)...)) {
		t.Errorf("found %q", got)
	}
}
