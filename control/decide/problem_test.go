package decide_test

import (
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// A failure of a replaced revision is no longer a problem of the service.
func TestAProblemIsOfTheRevisionThatIsWanted(t *testing.T) {
	failed := func(id pando.InstanceID, revision float64) pando.Decision {
		return pando.Decision{
			Kind: pando.DecidedFailed, Instance: id, Inputs: map[string]float64{"revision": revision},
		}
	}
	s := pando.Service{Target: 2, Phase: pando.ServiceDeploying}
	deploy := pando.Decision{Kind: pando.DecidedDeploy}
	for want, decisions := range map[pando.InstanceID][]pando.Decision{
		"":      {deploy, failed("web-a", 1)},
		"web-b": {deploy, failed("web-b", 2), failed("web-a", 1)},
		// An older build did not record the revision.
		"web-c": {deploy, {Kind: pando.DecidedFailed, Instance: "web-c"}},
	} {
		var got pando.InstanceID
		if p := decide.Problem(s, decisions); p != nil {
			got = p.Instance
		}
		if got != want {
			t.Errorf("of %v the problem is %q, want %q", decisions, got, want)
		}
	}
}

// A crash of the past is no problem of a service that is being removed, or that serves again.
func TestAPastFailureIsNoProblem(t *testing.T) {
	decisions := []pando.Decision{{Kind: pando.DecidedDeploy},
		{Kind: pando.DecidedFailed, Instance: "web-a", Inputs: map[string]float64{"revision": 1}}}
	for _, c := range []struct {
		s    pando.Service
		want bool
	}{
		{pando.Service{Target: 1, Phase: pando.ServiceDeploying}, true},
		{pando.Service{Target: 1, Phase: pando.ServiceServing}, false},
		{pando.Service{Target: 1, Phase: pando.ServiceRemoving, Removing: true}, false},
	} {
		if p := decide.Problem(c.s, decisions); (p != nil) != c.want {
			t.Errorf("%s: %+v, want a problem: %t", c.s.Phase, p, c.want)
		}
	}
}
