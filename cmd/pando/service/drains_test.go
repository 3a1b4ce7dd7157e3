package service

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console"
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
			text := console.Explain(st, 1).Error()
			if !strings.Contains(text, end) || !strings.Contains(text, "2 of its instances drain") ||
				!strings.Contains(text, waits) || strings.Contains(text, "serving") {
				t.Errorf("%q, want it to name %q and %q", text, waits, end)
			}
		}
	}
}
