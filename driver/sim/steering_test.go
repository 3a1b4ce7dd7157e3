package sim

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// Flows are shared by weight, an endpoint without weight gets none and keeps those it has, and the
// flows of an endpoint that leaves are counted as broken. A simulation counts on it.
func TestFlowsOfASimulationFollowTheTable(t *testing.T) {
	web := pando.DefaultService("web")
	rapid.Check(t, func(t *rapid.T) {
		s := NewSteering()
		table := pando.SteeringTable{Service: web}
		sum := 0
		for n := range rapid.IntRange(1, 6).Draw(t, "endpoints") {
			e := pando.Endpoint{
				Instance: pando.InstanceID(string(rune('a' + n))), Weight: 50 * rapid.IntRange(0, 3).Draw(t,
					"weight"),
			}
			table.Endpoints, sum = append(table.Endpoints, e), sum+e.Weight
		}
		if err := s.Publish(t.Context(), table); err != nil {
			t.Fatal(err)
		}
		const flows = 600
		for range flows {
			if _, ok := s.Open(web); ok != (sum > 0) {
				t.Fatalf("a flow was steered: %v, the weights are %d in all", ok, sum)
			}
		}
		if sum == 0 {
			return
		}
		for _, e := range table.Endpoints {
			want := float64(flows) * float64(e.Weight) / float64(sum)
			if got := float64(s.FlowsOf(e.Instance)); math.Abs(got-want) > 2 {
				t.Fatalf("%+v has %v flows, want %v", e, got, want)
			}
		}
		leaves := rapid.SampledFrom(table.Endpoints).Draw(t, "leaves")
		had := s.FlowsOf(leaves.Instance)
		var rest []pando.Endpoint
		for _, e := range table.Endpoints {
			if e.Instance != leaves.Instance {
				e.Weight = 0 // drains
				rest = append(rest, e)
			}
		}
		table.Endpoints = rest
		if err := s.Publish(t.Context(), table); err != nil {
			t.Fatal(err)
		}
		if s.Broken() != had || s.FlowsOf(leaves.Instance) != 0 {
			t.Fatalf("%d flows are broken, want %d", s.Broken(), had)
		}
		left := 0
		for _, e := range rest {
			left += s.FlowsOf(e.Instance)
		}
		if left != flows-had {
			t.Fatalf("%d flows are left after a drain, want %d", left, flows-had)
		}
	})
}

func TestAFaultOfSteeringEnds(t *testing.T) {
	s := NewSteering()
	table := pando.SteeringTable{Service: pando.DefaultService("web")}
	s.Fail("Publish", 2)
	for n, want := range []error{errInjected, errInjected, nil} {
		if err := s.Publish(t.Context(), table); !errors.Is(err, want) {
			t.Errorf("call %d: %v, want %v", n+1, err, want)
		}
	}
	s.Fail("Withdraw", -1)
	for range 3 {
		if err := s.Withdraw(t.Context(), table.Service); !errors.Is(err, errInjected) {
			t.Errorf("a lasting fault has ended: %v", err)
		}
	}
	s.Fail("Withdraw", 0)
	if err := s.Withdraw(t.Context(), table.Service); err != nil {
		t.Error(err)
	}
	if got := s.Calls("Publish") + s.Calls("Withdraw"); got != 7 {
		t.Errorf("%d calls are counted, want 7", got)
	}
	if all, err := s.Published(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("published %v (%v)", all, err)
	}
}

func TestATableOverTheLimitIsRefused(t *testing.T) {
	table := pando.SteeringTable{Service: pando.DefaultService("web"),
		Endpoints: make([]pando.Endpoint, pando.EndpointsMax+1)}
	if err := NewSteering().Publish(t.Context(), table); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("%v", err)
	}
}
