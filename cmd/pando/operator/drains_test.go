package operator

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// The error of a wait that was too short names the connections, and the command that ends it.
func TestAWaitNamesTheDrainAndItsEnd(t *testing.T) {
	st := pando.ServiceStatus{Service: pando.Service{
		ServiceKey: pando.ServiceKey{Tenant: pando.DefaultTenant, Name: "web"},
		Phase:      pando.ServiceServing, Reason: "0 in rotation"}}
	for _, waits := range []string{"waits for 1 connection, idle 27m, of 192.0.2.1:1000", ""} {
		i := pando.InstanceStatus{Instance: pando.Instance{ID: "web-1", Phase: pando.PhaseDraining,
			Waits: waits}}
		st.Instances = []pando.InstanceStatus{{}, i, i}
		for end, removing := range map[string]bool{
			"`pando rm web --now`": true, "`pando rollout finish web --now`": false,
		} {
			st.Removing = removing
			text := explain(st, 1).Error()
			if !strings.Contains(text, end) || !strings.Contains(text, "2 of its instances drain") ||
				!strings.Contains(text, waits) || strings.Contains(text, "serving") {
				t.Errorf("%q, want it to name %q and %q", text, waits, end)
			}
		}
	}
}

// A command that waits for a drain says so once per instance, while the service serves or leaves.
func TestAWaitSaysThatItWaitsForADrain(t *testing.T) {
	for _, phase := range []pando.ServicePhase{pando.ServiceServing, pando.ServiceRemoving} {
		var said strings.Builder
		r := reasons{o: &Console{Output: &cli.Output{Env: cli.Env{Stderr: &said}}}}
		for _, one := range []struct{ id, waits string }{
			{"web-1", ""}, {"web-1", "waits for 1 connection, idle 1s"},
			{"web-1", "waits for 1 connection, idle 2s"}, {"web-2", "waits for 1 connection, idle 3s"},
		} {
			r.print(pando.ServiceStatus{Service: pando.Service{Phase: phase, Reason: "3 of 3: as wanted"},
				Instances: []pando.InstanceStatus{{Instance: pando.Instance{
					ID: pando.InstanceID(one.id), Phase: pando.PhaseDraining, Waits: one.waits}}}})
		}
		if got := said.String(); strings.Count(got, "\n") != 2 ||
			!strings.Contains(got, "web-1 waits for 1 connection, idle 1s\n") ||
			!strings.Contains(got, "web-2 waits for 1 connection, idle 3s\n") {
			t.Errorf("%s: said %q", phase, got)
		}
	}
}
