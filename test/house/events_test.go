package house

import (
	"go/ast"
	"strings"
	"testing"
)

// eventKinds returns the constants of the root that name an event for an instance.
func eventKinds(all []source) (out []string) {
	for _, s := range all {
		if s.dir != "." || s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "SelfEventKind" {
				out = append(out, v.Names[0].Name)
			}
			return true
		})
	}
	return out
}

// TestEveryEventIsSent holds the events of the API against the agent: an application may wait
// for each of them.
func TestEveryEventIsSent(t *testing.T) {
	all := sources(t)
	kinds := eventKinds(all)
	if len(kinds) < 5 {
		t.Fatalf("found %v: the test does not read the events of the root", kinds)
	}
	for _, kind := range kinds {
		sent := false
		for _, s := range all {
			sent = sent || strings.HasPrefix(s.dir, "agent") && !s.isTest() && strings.Contains(s.text, "pando."+kind)
		}
		if !sent {
			t.Errorf("the agent never sends %s", kind)
		}
	}
}
