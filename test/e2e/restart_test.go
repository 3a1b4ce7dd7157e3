package e2e

import (
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// `pando restart SERVICE` replaces every instance, and an open connection outlives it. Without a
// service the command names both restarts.
func TestARestartReplacesInstancesAndBreaksNoConnection(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "scale: {min: 2, max: 4}"))
	before := names(web.AwaitInstances(2))
	other := p.Deploy(labtest.Echo("other", "scale: {min: 1, max: 4}"))
	has(t, p.Pando("ps", "web"), strings.Fields(before)...)
	if got := p.Pando("ps", "web"); strings.Contains(got, names(other.AwaitInstances(1))) {
		t.Errorf("ps web lists another service:\n%s", got)
	}
	p.Pando("logs", "-n", "1", "web")
	held := web.Hold(labtest.Client)
	has(t, p.PandoFails(2, "restart"), "pando restart SERVICE", "pando daemons restart")
	has(t, p.Pando("restart", "web", "--wait"), "web is restarted: 2 in rotation")
	for _, i := range web.Status().Instances {
		if strings.Contains(before, string(i.ID)) && i.Phase.TakesFlows() {
			t.Errorf("%s still takes flows", i.ID)
		}
	}
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("the held connection: code %d: %s", out.Code, out.Text)
	}
}
