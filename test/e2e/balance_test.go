package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// New connections avoid an instance without free memory, and `pando top` shows why.
func TestConnectionsGoToFreeInstances(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "scale: {min: 3, max: 3}", "resources: {memory: 96M}",
		"balance: {by: score, weights: {memory: 1}, every: 50ms}"))
	full := strings.Fields(web.Get(p.Host(), "/eat?mb=70"))
	if len(full) != 1 || full[0] != "70" {
		t.Fatalf("an instance ate %q", full)
	}
	var excluded pando.InstanceID
	p.Await("a full instance to be left out", func() (string, bool) {
		var top struct {
			Balance   pando.Balance
			Instances []pando.InstanceUsage
		}
		text := p.Pando("top", "web", "--once", "-o", "json")
		if err := json.Unmarshal([]byte(text), &top); err != nil {
			return text, false
		}
		out := 0
		for _, i := range top.Instances {
			if i.Score != nil && i.Score.Excluded {
				excluded = i.Instance
				out++
			}
		}
		return text, out == 1 && top.Balance.By == pando.ByScore
	})
	for range 30 {
		if got := web.Get(p.Host(), "/"); strings.HasPrefix(got, string(excluded)) {
			t.Fatalf("a connection went to %s, which is full", excluded)
		}
	}
}

// An application's own number scales its service, reaches the operator, and is the recorded reason.
func TestANumberOfTheApplicationScales(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web",
		"scale: {min: 1, max: 3, by: queue_depth, target: 10, quiet: 1s}"))
	report := func(depth int) {
		for _, i := range web.Status().Instances {
			p.Pando("exec", "web/"+string(i.ID), "--", "sh", "-c", fmt.Sprintf(
				`curl -sf --unix-socket "$PANDO_SOCKET" -X PUT http://self/v1/self/metrics `+
					`-d '{"queue_depth": %d}'`, depth))
		}
	}
	report(15)
	web.Await("a second instance", func(s pando.ServiceStatus) bool { return s.InRotation == 2 })
	if why := p.Pando("why", "web"); !strings.Contains(why, "queue_depth is 15 on 1 instances") {
		t.Errorf("why has no reason:\n%s", why)
	}
	if text := p.Pando("stats", "web"); !strings.Contains(text, "queue depth 15") {
		t.Errorf("stats has no number of the application:\n%s", text)
	}
	report(1)
	web.Await("one instance again", func(s pando.ServiceStatus) bool { return s.InRotation == 1 })
}
