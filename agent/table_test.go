package agent

import (
	"testing"

	"pando.run/pando"
)

// A service with a home is reached by a route, as long as no instance is on another host.
func TestOnlyAServiceOnSeveralHostsNeedsATunnel(t *testing.T) {
	hosts := func(names ...pando.HostName) pando.Endpoints { return pando.Endpoints{Hosts: names} }
	for name, c := range map[string]struct {
		home pando.HostName
		at   pando.Endpoints
		want bool
	}{
		"at home":                {"h1", hosts("h1"), false},
		"without instances":      {"h1", hosts(), false},
		"back at home, one left": {"h1", hosts("h1", "h2"), true},
		"spread, on one host":    {"", hosts("h2"), true},
		"spread":                 {"", hosts("h1", "h2"), true},
	} {
		if got := isSpread(pando.Service{Home: c.home}, c.at); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
