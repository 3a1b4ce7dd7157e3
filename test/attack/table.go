// Package attack is the table of all attacks that were tried on Pando, and runs them.
//
// A row names the tests that try its attack. The tests of the rooms run with `make test`; this
// package runs what needs a lab of its own, and with PANDO_ATTACKS=all the tests of every row. It
// never attacks anything but labs and processes of its own.
package attack

// Actor is who attacks. docs/security.md says what each one has.
type Actor string

// The actors.
const (
	Instance Actor = "instance"
	Token    Actor = "token"
	Image    Actor = "image"
	Member   Actor = "member"
	Network  Actor = "network"
	User     Actor = "user"
	Disk     Actor = "disk"
)

// Result is what an attack comes to.
type Result string

// The results. A choice is an open door; docs/security.md has its reason. An open row has no test
// in this tree, and PANDO_ATTACKS=all fails for it.
const (
	Blocked Result = "blocked"
	Choice  Result = "choice"
	Open    Result = "open"
)

// Row is one attack.
type Row struct {
	ID     string // as in docs/security.md
	Actor  Actor
	Attack string
	Want   Result
	// Tests try the attack: a folder or a file, and the name of a function. A choice may have none.
	Tests []Test
}

// Test is a function that tries an attack.
type Test struct{ Place, Name string }

// by returns tests of one place.
func by(place string, names ...string) (all []Test) {
	for _, n := range names {
		all = append(all, Test{place, n})
	}
	return all
}

func join(all ...[]Test) (out []Test) {
	for _, each := range all {
		out = append(out, each...)
	}
	return out
}

// lab is the test of this package with one shared lab.
var lab = by("test/attack", "TestAttacksInALab")
