package house

import (
	"go/ast"
	"maps"
	"slices"
	"testing"
)

// methodsMax is the largest number of methods of one type.
const methodsMax = 30

// methods counts the declared methods of each type, named as FOLDER.TYPE. Tests and generated files
// do not count.
func methods(all []source) map[string]int {
	count := map[string]int{}
	for _, s := range all {
		if s.isTest() || s.generated {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				count[s.dir+"."+receiver(f)]++
			}
		}
	}
	return count
}

func TestTypesHaveFewMethods(t *testing.T) {
	count := methods(sources(t))
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if n := count[name]; n > methodsMax {
			t.Errorf("%s has %d methods, at most %d: give its parts types of their own",
				name, n, methodsMax)
		}
	}
	if count["agent.Agent"] < 10 {
		t.Errorf("%d methods of agent.Agent were found: the test does not count", count["agent.Agent"])
	}
}
