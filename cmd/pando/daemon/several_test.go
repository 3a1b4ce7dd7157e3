package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/cluster/trust"
)

// joined makes a place on a host that joined the cluster of another server.
func joined(t *testing.T) place {
	t.Helper()
	p := place{folders: folders{Run: t.TempDir(), Data: t.TempDir()}, Host: "two"}
	a, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, err := a.Identity("two", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := trust.Membership{Host: "two", Server: "one:7401", Store: "one:7402", Identity: i}
	if err := m.Save(p.trust()); err != nil {
		t.Fatal(err)
	}
	return p
}

// After the removal of its server, a host starts no store of its own: other hosts would meet it.
func TestAHostThatJoinedHasAServerOnlyAsOneOfSeveral(t *testing.T) {
	p := joined(t)
	if serves, err := p.isServer(); serves || err != nil {
		t.Errorf("a host that only joined: %v, %v", serves, err)
	}
	if err := p.writeSeveral(several{}); err != nil {
		t.Fatal(err)
	}
	if serves, err := p.isServer(); !serves || err != nil {
		t.Errorf("one of several servers: %v, %v", serves, err)
	}
	if err := os.Mkdir(filepath.Join(p.Data, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := leaveServers(p); err != nil {
		t.Fatal(err)
	}
	if serves, err := p.isServer(); serves || err != nil {
		t.Errorf("after its removal: %v, %v", serves, err)
	}
	if aside, _ := filepath.Glob(filepath.Join(p.Data, "store.removed-*")); len(aside) != 1 {
		t.Errorf("the store was not put aside: %v", aside)
	}
}

func TestARestoreRefusesOneOfSeveralServers(t *testing.T) {
	p := place{folders: folders{Data: t.TempDir()}, Host: "one"}
	r := restoration{place: p, replace: true}
	r.is.Host = "one"
	if err := r.permitted(t.Context()); err != nil {
		t.Errorf("a single server: %v", err)
	}
	if err := p.writeSeveral(several{}); err != nil {
		t.Fatal(err)
	}
	if err := r.permitted(t.Context()); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("one of several servers: %v", err)
	}
}
