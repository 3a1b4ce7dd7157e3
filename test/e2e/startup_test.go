package e2e

import (
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// A program that prepares itself for longer than ready_within serves, because its startup probe has
// a time of its own. A start beyond that time fails, and `pando why` shows the answer.
func TestASlowStartHasAProbeOfItsOwn(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	const slow = "command: [sh, -c, \"sleep 2; touch /tmp/migrated; exec ./echo\"]\n" +
		"health: {startup: {probe: exec test -f /tmp/migrated, within: WITHIN}, ready: tcp 8080,\n" +
		"  ready_within: 1s}\n"
	within := func(name, limit string) string {
		return "name: " + name + "\nports: [\"80:8080\"]\n" + strings.ReplaceAll(slow, "WITHIN", limit)
	}
	web := p.Deploy(within("web", "1m"))
	if got := web.Get(p.Host(), "/"); !strings.HasPrefix(got, "web-") {
		t.Errorf("the slow starter answered %q", got)
	}
	said, why := p.DeployFails(7, within("late", "500ms")), p.Pando("why", "late")
	for _, want := range []string{"not started within 500ms (`health.startup.within`)",
		"probe exec test -f /tmp/migrated", "exited with 1"} {
		if !strings.Contains(said, want) || !strings.Contains(why, want) {
			t.Errorf("want %q in the answer and in why:\n%s\n%s", want, said, why)
		}
	}
}
