package pando

import (
	"encoding/json"
	"testing"
)

// A client reads a good answer by its missing error.
func TestAGoodAnswerHasNoError(t *testing.T) {
	u := InstanceUsage{Health: HealthReady, Answers: []ProbeAnswer{{Probe: ProbeTCP}}}
	b, err := json.Marshal(u)
	var back map[string]any
	if err != nil || json.Unmarshal(b, &back) != nil {
		t.Fatal(err)
	}
	answers, _ := back["answers"].([]any)
	if len(answers) != 1 || back["health"] != "ready" {
		t.Fatalf("%s", b)
	}
	if _, has := answers[0].(map[string]any)["error"]; has {
		t.Errorf("a good answer has an error: %s", b)
	}
}
