package requests

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
)

// movable is a control with two hosts that freeze, one that is away and one that does not freeze.
// Instance web-2 serves on h1.
func movable(t *testing.T, change func(*pando.Spec)) *Requests {
	t.Helper()
	c := visitable(t, &answering{})
	spec := pando.Spec{Name: "web", Command: []string{"web"},
		Place: pando.Place{Spread: pando.SpreadHost}}.WithDefaults()
	change(&spec)
	all := []pando.Stored{
		pando.Revision{Service: web, Number: 1, Spec: spec, State: pando.RevisionCurrent},
		pando.Service{ServiceKey: web, Target: 1, Current: 1},
		pando.Member{Name: "h3"},
	}
	for _, h := range []pando.Host{{Name: "h1", Freezes: true}, {Name: "h2", Freezes: true},
		{Name: "old"}, {Name: "leaving", Freezes: true, Leaving: true}} {
		h.Tunnel, h.Memory, h.CPUs = true, 1<<30, 2
		all = append(all, h)
	}
	for _, n := range []string{"web-2", "web-4"} {
		i := c.desk.mirror.World.Instances[pando.InstanceID(n)].V
		i.Revision = 1
		all = append(all, i)
	}
	c.desk.mirror.World.Committed(pando.Txn{Put: all}, 2)
	return c
}

// Every refusal of a move names its cause and the next command, before anything stops.
func TestARefusedMoveNamesItsCauseAndTheNextCommand(t *testing.T) {
	for what, r := range map[string]struct {
		instance pando.InstanceID
		to       pando.HostName
		change   func(*pando.Spec)
		is       error
		cause    string
		next     string
	}{
		"the same host": {to: "h1", is: pando.ErrRefused, cause: "h1 has it already",
			next: "pando hosts"},
		"an unknown host": {to: "h9", is: pando.ErrNotFound, cause: "h9", next: "pando hosts"},
		"a host that is away": {to: "h3", is: pando.ErrUnavailable, cause: "h3 is away",
			next: "pando hosts"},
		"a host without CRIU": {to: "old", is: pando.ErrRefused, cause: "old takes no instance that",
			next: "pando doctor"},
		"a host that leaves": {to: "leaving", is: pando.ErrRefused, cause: "no instances now",
			next: "pando hosts"},
		"another label": {to: "h2", is: pando.ErrRefused, cause: "lacks the label disk=ssd",
			next:   "pando why web --pending",
			change: func(s *pando.Spec) { s.Place.Only = "disk=ssd" }},
		"no room": {to: "h2", is: pando.ErrNoRoom, cause: "host h2: ", next: "pando why web --pending",
			change: func(s *pando.Spec) { s.Resources.MemoryBytes = 1 << 40 }},
		"no room anywhere": {is: pando.ErrNoRoom, cause: "1099511627776 bytes of memory",
			next:   "pando why web --pending",
			change: func(s *pando.Spec) { s.Resources.MemoryBytes = 1 << 40 }},
		"its host is away": {instance: "web-away", is: pando.ErrUnavailable, cause: "host gone",
			next: "pando hosts"},
		"it drains": {instance: "web-4", is: pando.ErrConflict, cause: "web-4 is draining",
			next: "pando ps web"},
		"it ended": {instance: "web-77", is: pando.ErrNotFound, cause: "web-77", next: "pando ps"},
		"a grant": {is: pando.ErrRefused, cause: "its grants", next: "pando scale",
			change: func(s *pando.Spec) { s.Grants = []pando.Grant{"device: kvm"} }},
		"a machine": {is: pando.ErrRefused, cause: "a virtual machine", next: "pando scale",
			change: func(s *pando.Spec) { s.Kind = pando.KindVM }},
		"a volume": {is: pando.ErrRefused, cause: "its volumes", next: "pando why",
			change: func(s *pando.Spec) { s.Volumes = []pando.Volume{{}} }},
		"an image, also for crun": {is: pando.ErrRefused, cause: "it has an image", next: "run the",
			change: func(s *pando.Spec) {
				s.Image, s.Runtime = pando.Image{Reference: "a", Digest: "sha256:1"}, "crun"
			}},
		"a secret of a file": {is: pando.ErrRefused, cause: "its secrets", next: "pando scale",
			change: func(s *pando.Spec) { s.Secrets = map[string]string{"a": "/a"} }},
		"a secret of the store": {is: pando.ErrRefused, cause: "its secrets", next: "pando scale",
			change: func(s *pando.Spec) { s.StoredSecrets = []pando.StoredSecret{{Name: "a"}} }},
		"one host for all": {is: pando.ErrRefused, cause: "on one host", next: "spread: host",
			change: func(s *pando.Spec) { s.Place = pando.Place{} }},
	} {
		if r.change == nil {
			r.change = func(*pando.Spec) {}
		}
		if r.instance == "" {
			r.instance = "web-2"
		}
		c := movable(t, r.change)
		_, err := c.Migrate(context.Background(), web, r.instance, r.to, pando.Asker{Name: "ann"})
		if !errors.Is(err, r.is) {
			t.Errorf("%s: %v, want %v", what, err, r.is)
		}
		for _, want := range []string{r.cause, r.next} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v\nwant %q", what, err, want)
			}
		}
		if now := c.desk.mirror.World.Instances[r.instance].V; now.Move != nil {
			t.Errorf("%s: the instance has the mark %+v", what, now.Move)
		}
	}
}
