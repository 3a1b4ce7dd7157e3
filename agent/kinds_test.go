package agent

import (
	"os"
	"regexp"
	"testing"

	"pando.run/pando"
)

// The gate of the store refuses decisions of other kinds, so the agent would lose them.
func TestTheStoreTakesEveryKindOfDecisionThatAgentsWrite(t *testing.T) {
	root, err := os.ReadFile("../decision.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]pando.DecisionKind{}
	for _, m := range regexp.MustCompile(`(Decided\w+) +DecisionKind = "(.*?)"`).
		FindAllStringSubmatch(string(root), -1) {
		kinds[m[1]] = pando.DecisionKind(m[2])
	}
	found := 0
	for _, file := range sourcesOf(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`pando\.(Decided\w+)`).FindAllStringSubmatch(string(text), -1) {
			found++
			if !kinds[m[1]].OfAgents() {
				t.Errorf("%s writes %s, which OfAgents leaves out", file, m[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d kinds were found", found)
	}
}
