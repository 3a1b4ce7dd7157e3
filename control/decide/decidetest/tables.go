package decidetest

import (
	"testing"
	"time"

	"pando.run/pando"
)

// Serving returns a table with the service web in rotation at its first revision.
func Serving(t *testing.T) *Table {
	tb := New(t)
	tb.Deploy(1, nil)
	tb.Settle()
	tb.Run()
	tb.Settle()
	return tb
}

// Served returns a table with web in rotation at its home h1, and an empty host h2.
func Served(t *testing.T, change func(*pando.Spec)) *Table {
	tb := New(t)
	tb.Put(pando.Host{Name: "h2"})
	tb.Deploy(1, change)
	tb.Settle()
	tb.Run()
	tb.Settle()
	if n := tb.On("h1", pando.PhaseInRotation); n != 2 || tb.W.Services[Web].V.Home != "h1" {
		t.Fatalf("%d in rotation at home, which is %q", n, tb.W.Services[Web].V.Home)
	}
	return tb
}

// Shifting returns a table with web in rotation on h1, and two empty hosts.
func Shifting(t *testing.T, change func(*pando.Spec)) *Table {
	tb := New(t)
	tb.Members("h1", "h2", "h3")
	tb.Put(pando.Host{Name: "h1", Tunnel: true})
	tb.Deploy(1, change)
	for range 3 {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	tb.Settle()
	// h3 is less loaded than h2, and comes first without a target.
	tb.Put(pando.Host{Name: "h2", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true})
	return tb
}

// Spread returns a table with the service web in rotation, spread over three hosts.
func Spread(t *testing.T, least int, change func(*pando.Spec)) *Table {
	tb := New(t)
	tb.Put(pando.Host{Name: "h1", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true},
		pando.Host{Name: "h2", Labels: "zone=b", Tunnel: true})
	tb.Deploy(1, func(s *pando.Spec) {
		s.Scale, s.Place.Spread = pando.Scale{Min: least, Max: 2 * least}, pando.SpreadHost
		if change != nil {
			change(s)
		}
	})
	for range 3 {
		tb.Settle()
		tb.Run()
	}
	tb.Settle()
	return tb
}

// Stateful makes a spec stateful, with three ordinals on hosts of their own.
func Stateful(s *pando.Spec) {
	s.Kind, s.Scale = pando.Stateful, pando.Scale{Min: 3}
	s.Place.Spread = pando.SpreadHost
	s.Volumes = []pando.Volume{{Name: "data", Path: "/data"}}
	s.Hooks = pando.Hooks{Bootstrap: []string{"first"}, Recover: []string{"position"}}
}

// Group returns a table with a stateful service of three ordinals on three hosts, and hooks.
func Group(t *testing.T) *Table {
	tb := New(t)
	for _, h := range []pando.HostName{"h1", "h2", "h3"} {
		tb.Put(pando.Host{Name: h, Tunnel: true, Ordinals: true})
	}
	tb.Deploy(1, Stateful)
	return tb
}

// formed returns a group in rotation.
func FormedGroup(t *testing.T) *Table {
	tb := Group(t)
	for range 4 {
		tb.Settle()
		tb.Run()
	}
	tb.Settle()
	return tb
}

var (
	// Acme is a tenant.
	Acme = pando.Tenant("acme")
	// Shop is a service of Acme.
	Shop = pando.ServiceKey{Tenant: Acme, Name: "shop"}
)
