package pando

import (
	"strings"
	"testing"
	"time"
)

// The newest instances without connections are named, and nothing else is.
func TestKeptConnectionsAreNamed(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	service := func(conns ...int) (out []InstanceUsage) { // the oldest first, a minute apart
		for n, c := range conns {
			out = append(out, InstanceUsage{Connections: c, Phase: PhaseInRotation,
				Born: now.Add(time.Duration(n-len(conns)) * time.Minute)})
		}
		return out
	}
	young, drains := service(72, 0), service(72, 0)
	young[1].Born = now.Add(-time.Second)
	drains[1].Phase = PhaseDraining
	away := append(service(9, 9), InstanceUsage{Missing: "away", Phase: PhaseInRotation})
	for _, c := range []struct {
		all  []InstanceUsage
		want string
	}{
		{service(72, 0, 0, 0, 0, 0, 0, 0), "the 7 newest of 8 instances have 0 of 72 connections"},
		{service(40, 30, 2), "the 1 newest of 3 instances have 2 of 72 connections"},
		{service(9, 9, 9), ""}, {service(72), ""}, {service(3, 0), ""}, {nil, ""}, {young, ""},
		{drains, ""}, {away, ""}, {service(0, 72), ""}, {service(20, 10, 12), ""},
	} {
		got := Kept(c.all, ByNothing, now)
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.all, got, c.want)
		}
	}
	if got := Kept(service(72, 0), ByConnections, now); !strings.Contains(got, "connections/s") {
		t.Errorf("a service by connections/s: %q", got)
	}
}
