package house

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// room is one place of the tree with its rank. The longest prefix wins.
type room struct {
	prefix string
	rank   int
}

// rooms is the table of ranks. A folder below a room belongs to it. Each driver and each adapter is a
// room of its own, so drivers never import each other.
var rooms = []room{
	{"test/failpoint", 0}, {"spec/nearest", 0},
	{"access", 1}, {"edge", 1}, {"spec/span", 1},
	{"bpf", 2}, {"sdk", 2}, {"world", 2}, {"spec", 2}, {"state", 2}, {"api", 2},
	{"driver/network/attach", 2},
	{"driver/network/sockets", 2}, {"driver/network/netspace", 2}, {"driver/sandbox/thread", 1},
	{"scale", 3}, {"balance", 3}, {"lifecycle", 3}, {"function", 3}, {"memory", 3}, {"driver", 3},
	{"adapter", 3},
	{"control", 4}, {"agent", 4}, {"function/group", 4}, {"lab", 4},
	{"cmd", 5},
	{"bench", 6}, {"examples", 6}, {"deploy", 6}, {"demo", 7},
	{"test", 8},
}

// roomOf returns the room of a folder and its rank. ok is false if the table has no such room.
func roomOf(dir string) (name string, rank int, ok bool) {
	if dir == "." {
		return "pando", 0, true
	}
	longest := ""
	for _, r := range rooms {
		below, found := strings.CutPrefix(dir+"/", r.prefix+"/")
		if !found || len(r.prefix) < len(longest) {
			continue
		}
		longest, name, rank, ok = r.prefix, r.prefix, r.rank, true
		for part := range strings.SplitSeq(strings.TrimSuffix(below, "/"), "/") {
			if part == "" || !holdsRooms(name) {
				break
			}
			name += "/" + part
		}
	}
	return name, rank, ok
}

// holdsRooms reports whether each folder directly below a place is a room of its own.
func holdsRooms(place string) bool {
	switch place {
	case "driver", "driver/network", "driver/sandbox", "driver/store", "driver/cluster", "adapter",
		"cmd", "examples":
		return true
	}
	return false
}

// loops are the rooms that reach the outside through interfaces of the root alone.
var loops = map[string]bool{"control": true, "agent": true, "function/group": true}

// breach returns the rule that an import breaks, or "" if the import is allowed.
func breach(from, imported string) string {
	here, rank, ok := roomOf(from)
	if !ok {
		return fmt.Sprintf("%s is in no room: put it into one, or add the room to the table of ranks",
			from)
	}
	there, low, ok := roomOf(imported)
	switch {
	case !ok:
		return fmt.Sprintf("%s is in no room of the table of ranks", imported)
	case loops[here] && strings.HasPrefix(there, "driver/"):
		return fmt.Sprintf("%s imports the driver %s: a loop takes an interface of the root", here, there)
	case here == there || low < rank:
		return ""
	case low == rank:
		return fmt.Sprintf("%s and %s have the same rank (%d): equal ranks meet only through "+
			"interfaces of the root", here, there, rank)
	}
	return fmt.Sprintf("%s (rank %d) imports %s (rank %d): import lower ranks only",
		here, rank, there, low)
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
			here, _, _ := roomOf(s.dir)
			joins := s.isTest() && (loops[here] || strings.HasPrefix(here, "driver/"))
			if joins && strings.HasPrefix(dir, "driver/") {
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
		{"driver/store/etcd", "driver/store/etcd/wire", true},
		{"cmd/pando", "lab", true},
		{"driver/store/etcd", "driver/store/bolt", false},
		{"driver/cluster/peer", "driver/store/etcd", false},
		{"adapter/compose", "adapter/gateway", false},
		{"scale", "balance", false},
		{"api", "spec/nearest", true},
		{"spec/nearest", "spec", false},
		{"api", "spec", false},
		{"driver/lab", "lab", false},
		{"function/group", "function", true},
		{"function/group/deeper", "function/group", true},
		{"function", "function/group", false},
		{"function/groups", "function", true},
		{"driver/sandbox/unit", "function/group", false},
		{"function/group", "driver/sandbox/unit", false},
		{"control", "driver/store/etcd", false},
		{"lab", "driver/store/etcd", true},
		{".", "spec", false},
		{"attic", ".", false},
	} {
		if got := breach(c.from, c.imported); (got == "") != c.allowed {
			t.Errorf("%s imports %s: breach %q, allowed should be %v", c.from, c.imported, got, c.allowed)
		}
	}
}
