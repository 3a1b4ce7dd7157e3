package console

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// A command that waits for a drain says so, and once per instance what that waits for, while the service serves or leaves.
func TestAWaitSaysThatItWaitsForADrain(t *testing.T) {
	for _, phase := range []pando.ServicePhase{pando.ServiceServing, pando.ServiceRemoving} {
		var said strings.Builder
		r := Reasons{O: &Console{Out: &cli.Output{Env: cli.Env{Stderr: &said}}}}
		for _, one := range []struct{ id, waits string }{
			{"web-1", ""}, {"web-1", "waits for 1 connection, idle 1s"},
			{"web-1", "waits for 1 connection, idle 2s"}, {"web-2", "waits for 1 connection, idle 3s"},
		} {
			r.Print(pando.ServiceStatus{Service: pando.Service{Phase: phase, Reason: "3 of 3: as wanted"},
				Instances: []pando.InstanceStatus{{Instance: pando.Instance{
					ID: pando.InstanceID(one.id), Phase: pando.PhaseDraining, Waits: one.waits}}}})
		}
		if got := said.String(); strings.Count(got, "\n") != 3 ||
			!strings.Contains(got, ": 1 of its instances drain\n") ||
			!strings.Contains(got, "web-1 waits for 1 connection, idle 1s\n") ||
			!strings.Contains(got, "web-2 waits for 1 connection, idle 3s\n") {
			t.Errorf("%s: said %q", phase, got)
		}
	}
}

// A command that waits names the first instance that is late, and the host that is away with it. The
// way out of a drain on a host that is away is another one.
func TestAWaitNamesALateInstanceAndItsHost(t *testing.T) {
	status := func(phase pando.Phase, away string) pando.ServiceStatus {
		return pando.ServiceStatus{
			Service: pando.Service{ServiceKey: pando.DefaultService("web"), Phase: pando.ServiceServing},
			Instances: []pando.InstanceStatus{
				{Instance: pando.Instance{ID: "web-1", Phase: pando.PhaseInRotation}},
				{Instance: pando.Instance{ID: "web-2", Host: "host2", Phase: phase,
					Reason: "it waits for registry r.example"}, Away: away},
			}}
	}
	for want, st := range map[string]pando.ServiceStatus{
		"waiting: web: web-2 is placed: it waits for registry r.example\n": status(pando.PhasePlaced, ""),
		"waiting: web: web-2 is in rotation: host host2 is away\n": status(pando.PhaseInRotation,
			"host host2 is away"),
		"waiting: web: web-2 host host2 is away\n": status(pando.PhaseDraining, "host host2 is away"),
		"": status(pando.PhaseInRotation, ""),
	} {
		var said strings.Builder
		r := Reasons{O: &Console{Out: &cli.Output{Env: cli.Env{Stderr: &said}}}}
		r.Print(st)
		if r.Print(st); said.String() != want {
			t.Errorf("said %q, want %q", said.String(), want)
		}
	}
	err := Explain(status(pando.PhaseDraining, "host host2 is away"), 1)
	if !strings.Contains(err.Error(), "`pando hosts rm host2 --force`") {
		t.Errorf("the way out of %v", err)
	}
}
