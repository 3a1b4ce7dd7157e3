package control

import (
	"testing"

	"pando.run/pando"
	"pando.run/pando/world"
)

// The cluster writes a newer layout once every member is here and reads it, and never goes back.
func TestTheLayoutSwitchesOnceAllHostsReadIt(t *testing.T) {
	const old, next = pando.Layout, pando.Layout + 1
	host := func(name pando.HostName, layout int) pando.Host {
		return pando.Host{Name: name, Layout: layout}
	}
	for _, c := range []struct {
		what    string
		cluster int
		members []pando.HostName
		hosts   []pando.Host
		newest  int
		want    int
	}{
		{"no member yet", 0, nil, nil, next, old},
		{"an old control", 0, []pando.HostName{"a"}, []pando.Host{host("a", next)}, old, old},
		{"an old host", 0, []pando.HostName{"a", "b"},
			[]pando.Host{host("a", next), host("b", old)}, next, old},
		{"a host that says nothing", 0, []pando.HostName{"a"}, []pando.Host{host("a", 0)}, next, old},
		{"a host that is away", 0, []pando.HostName{"a", "b"}, []pando.Host{host("a", next)}, next, old},
		{"all read it", 0, []pando.HostName{"a", "b"},
			[]pando.Host{host("a", next), host("b", next)}, next, next},
		{"switched before", next, []pando.HostName{"a"}, []pando.Host{host("a", old)}, next, next},
	} {
		w := world.New()
		w.Cluster.V = pando.Cluster{ID: "c", Generation: 1, Layout: c.cluster}
		for _, m := range c.members {
			w.Committed(pando.Txn{Put: []pando.Stored{pando.Member{Name: m}}}, 1)
		}
		for _, h := range c.hosts {
			w.Committed(pando.Txn{Put: []pando.Stored{h}}, 1)
		}
		if got := nextLayout(w, c.newest); got != c.want {
			t.Errorf("%s: layout %d, want %d", c.what, got, c.want)
		}
	}
}
