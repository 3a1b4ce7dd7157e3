package house

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// room is one place of the tree with its rank. A longer prefix wins.
type room struct {
	prefix string
	rank   int
}

// rooms is the table of ranks. A folder below a room belongs to it. Each folder directly below
// driver/ is a room of its own, so drivers never import each other.
var rooms = []room{
	{"failpoint", 0}, {"spec/nearest", 0},
	{"bpf", 1}, {"sdk", 1}, {"world", 1}, {"spec", 1}, {"state", 1}, {"api", 1},
	{"scale", 2}, {"balance", 2}, {"lifecycle", 2}, {"function", 2}, {"memory", 2}, {"driver", 2},
	{"control", 3}, {"agent", 3}, {"lab", 3},
	{"cmd", 4},
	{"bench", 5}, {"examples", 5}, {"deploy", 5}, {"demo", 6},
	{"test", 7},
}

// roomOf returns the room of a folder and its rank. ok is false if the table has no such room.
func roomOf(dir string) (name string, rank int, ok bool) {
	if dir == "." {
		return "pando", 0, true
	}
	for _, r := range rooms {
		if dir != r.prefix && !strings.HasPrefix(dir, r.prefix+"/") || len(r.prefix) < len(name) {
			continue
		}
		name, rank, ok = r.prefix, r.rank, true
	}
	parts := strings.Split(dir, "/")
	if (name == "driver" || name == "cmd" || name == "examples") && len(parts) > 1 {
		name += "/" + parts[1]
	}
	return name, rank, ok
}

// breach returns the rule that an import breaks, or "" if the import is allowed.
func breach(from, imported string) string {
	here, rank, ok := roomOf(from)
	if !ok {
		return fmt.Sprintf("%s is in no room: put it into one, or add the room to the table of ranks", from)
	}
	there, low, ok := roomOf(imported)
	switch {
	case !ok:
		return fmt.Sprintf("%s is in no room of the table of ranks", imported)
	case here == there || low < rank:
		return ""
	case low == rank:
		return fmt.Sprintf("%s and %s have the same rank (%d): equal ranks meet only through interfaces of the root", here, there, rank)
	}
	return fmt.Sprintf("%s (rank %d) imports %s (rank %d): import lower ranks only", here, rank, there, low)
}

func TestImportsPointDownward(t *testing.T) {
	for _, s := range sources(t) {
		if _, _, ok := roomOf(s.dir); !ok {
			t.Errorf("%s: the folder is in no room of the table of ranks", s.path)
		}
		for _, spec := range s.file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: import %s: %v", s.path, spec.Path.Value, err)
			}
			dir, ours := moduleDir(name)
			if !ours {
				continue
			}
			if s.isTest() && strings.HasPrefix(s.dir, "driver/") && strings.HasPrefix(dir, "driver/") {
				continue // a test joins drivers as cmd does: the real one beats a mock
			}
			if rule := breach(s.dir, dir); rule != "" {
				t.Errorf("%s: import %q: %s", s.fset.Position(spec.Pos()), name, rule)
			}
		}
	}
}

// moduleDir returns the folder of an imported package and reports whether it belongs to this
// module.
func moduleDir(importPath string) (string, bool) {
	if importPath == modulePath {
		return ".", true
	}
	dir, ours := strings.CutPrefix(importPath, modulePath+"/")
	// The Go SDK is a module of its own: its users depend on nothing else.
	return dir, ours && dir != "sdk/app/go" && !strings.HasPrefix(dir, "sdk/app/go/")
}

func TestBreachIsFound(t *testing.T) {
	for _, c := range []struct {
		from, imported string
		allowed        bool
	}{
		{"spec", ".", true},
		{"control", "scale", true},
		{"driver/etcd", "driver/etcd/wire", true},
		{"cmd/pando", "lab", true},
		{"driver/etcd", "driver/bolt", false},
		{"scale", "balance", false},
		{"api", "spec/nearest", true},
		{"spec/nearest", "spec", false},
		{"api", "spec", false},
		{"driver/lab", "lab", false},
		{".", "spec", false},
		{"attic", ".", false},
	} {
		if got := breach(c.from, c.imported); (got == "") != c.allowed {
			t.Errorf("%s imports %s: breach %q, allowed should be %v", c.from, c.imported, got, c.allowed)
		}
	}
}
