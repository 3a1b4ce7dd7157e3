package pando

import "testing"

// A name leads only to addresses that answer: IPv6 once every instance is known to accept by it, and
// IPv4 unless every instance accepts by IPv6 alone.
func TestAServiceHearsWhatAllItsInstancesHear(t *testing.T) {
	for _, c := range []struct {
		of   []Hearing
		want Hearing
	}{
		{nil, ""}, {[]Hearing{""}, "4"}, {[]Hearing{"4"}, "4"}, {[]Hearing{"46"}, "46"},
		{[]Hearing{"46", ""}, "4"}, {[]Hearing{"46", "4"}, "4"}, {[]Hearing{"6"}, "6"},
		{[]Hearing{"6", "46"}, "46"}, {[]Hearing{"6", "4"}, "4"},
	} {
		instances := []Instance{{Phase: PhaseStarting, Hears: "4"}, {Phase: PhaseDraining, Hears: "4"},
			{Phase: PhaseReady, Hears: "4", Run: &RunPart{}}}
		for _, h := range c.of {
			instances = append(instances, Instance{Phase: PhaseInRotation, Hears: h})
		}
		if got := EndpointsOf(Service{}, Spec{}, instances).Hears; got != c.want {
			t.Errorf("%v: %q, want %q", c.of, got, c.want)
		}
	}
}
