package daemon

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"pando.run/pando/driver/cluster/trust"
)

// A member whose certificate has ended is told so, with the way back. It waited for a minute before.
func TestAnEndedCertificateIsNamed(t *testing.T) {
	a, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, err := a.Identity("h1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &trust.Membership{Host: "h1", Server: "192.0.2.1:7401", Identity: i}
	p := place{folders: folders{Data: t.TempDir()}}
	if err := m.Save(p.trust()); err != nil {
		t.Fatal(err)
	}
	if err := expired(p, m, time.Now()); err != nil {
		t.Error(err)
	}
	err = expired(p, m, i.Ends().Add(time.Second))
	if err == nil || !strings.Contains(err.Error(), "pando up --join 192.0.2.1:7401 --token TOKEN") {
		t.Errorf("after its end: %v", err)
	}
}

func TestADiskWithoutInodesIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		files, free uint64
		full        bool
	}{
		"none left": {1000, 0, true}, "enough": {1000, 500, false}, "not counted": {0, 0, false},
	} {
		err := hasInodes("/d", syscall.Statfs_t{Files: c.files, Ffree: c.free, Bavail: 1 << 30})
		if (err != nil) != c.full || c.full && !strings.Contains(err.Error(), "no inodes left") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
