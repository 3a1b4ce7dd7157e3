package house

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// boundName is the end of the name of a bound. A room is bounded by more words than Max.
	boundName = regexp.MustCompile(
		`(Max|Most|(^k|K)ept|(^k|K)eep|(^b|B)urst|Buckets|Per(Second|Minute)|(^a|A)tOnce|Cap|Limit)$`)
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
					(n >= len(v.Values) || !isTime(v.Values[n]))
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

// isTime reports whether a value is a time.
func isTime(e ast.Expr) (found bool) {
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
