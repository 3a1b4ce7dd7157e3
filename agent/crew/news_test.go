package crew

import (
	"slices"
	"testing"

	"pando.run/pando"
)

func TestACommitIsReadInOnePass(t *testing.T) {
	web, other := pando.DefaultService("web"), pando.DefaultService("other")
	n := Digest([]pando.Record{
		{Key: pando.Instance{ID: "b", Service: web, Host: "h1"}.Key()}, {Key: web.Key()},
		{Key: pando.Instance{ID: "a", Service: web, Host: "h1"}.Key()},
		{Key: pando.HeadKey(other)}, {Key: pando.RevisionKey(other, 1)}, {Key: pando.HostKey("h2")},
	})
	w, o := n.Services[web], n.Services[other]
	if !n.Hosts || len(n.Names()) != 2 {
		t.Errorf("it concerns the hosts: %v, and the services %v", n.Hosts, n.Names())
	}
	if !slices.Equal(w.Instances, []pando.InstanceID{"b", "a"}) || !w.Service || w.Revision || w.head {
		t.Errorf("of web: %+v", *w)
	}
	if len(o.Instances) > 0 || o.Service || !o.Revision || !o.head {
		t.Errorf("of other: %+v", *o)
	}
}
