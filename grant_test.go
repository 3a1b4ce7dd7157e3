package pando

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseGrant(t *testing.T) {
	for text, want := range map[string]Grant{
		"device=kvm": "device=kvm", "device=/dev/net/tun": "device=net/tun",
		"path=/proc/modules": "path=/proc/modules:ro", "path=/proc/modules:ro": "path=/proc/modules:ro",
		"path=/sys/fs/bpf:rw": "path=/sys/fs/bpf:rw", "netns=host": GrantHostNet,
	} {
		if got, err := ParseGrant(text); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"kvm": "want device=NAME", "": "want device=NAME", "netns=other": "want device=NAME",
		"device=": "name of a file in /dev", "device=../etc/shadow": "name of a file in /dev",
		"device=net/../mem": "name of a file in /dev", "device=null": "every instance has /dev/null",
		"device=shm/x": "every instance has", "path=proc": "absolute path",
		"path=/proc": "below /proc", "path=/dev/kvm": "want device=kvm", "path=/a:rx": ":ro or :rw",
		"path=/run/pando/x":                 "the instance's own",
		"path=/" + strings.Repeat("a", 300): "want device=NAME",
	} {
		got, err := ParseGrant(text)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v; want %q", text, got, err, want)
		}
	}
}

func TestAHostGivesOnlyGrantsOfItsOwner(t *testing.T) {
	at := time.Unix(1, 0)
	m := Member{Name: "h1", Server: true}
	if g := m.Withholds([]Grant{"device=kvm"}); g != "device=kvm" {
		t.Errorf("a server's host gives something by itself: it withholds %q", g)
	}
	was := m
	for _, g := range []Grant{"device=kvm", "path=/sys/a:rw", "path=/sys/b:ro"} {
		var changed bool
		var err error
		m, changed, err = m.SetGrant(g, Granting{May: true, By: "ann", At: at})
		if !changed || err != nil {
			t.Fatal(changed, err)
		}
	}
	if len(was.Grants) != 0 {
		t.Error("the record before the change has changed")
	}
	for g, want := range map[Grant]bool{
		"device=kvm": true, "device=kv": false, "path=/sys/a:rw": true, "path=/sys/a:ro": true,
		"path=/sys/b:ro": true, "path=/sys/b:rw": false, GrantHostNet: false, "path=/sys/a/c:ro": false,
	} {
		if got := m.Gives(g); got != want {
			t.Errorf("%s: %v, want %v", g, got, want)
		}
	}
	if _, changed, _ := m.SetGrant("device=kvm", Granting{May: true}); changed {
		t.Error("the same grant changed the record")
	}
	m, _, _ = m.SetGrant("device=kvm", Granting{By: "bob", At: at})
	if m.Gives("device=kvm") || m.Grants["device=kvm"].By != "bob" {
		t.Errorf("it was taken away: %+v", m.Grants)
	}
}

// A host's record has a bound. A grant that was taken away makes room for a new one.
func TestTheGrantsOfAHostAreBounded(t *testing.T) {
	m, at := Member{Name: "h1"}, time.Unix(1, 0)
	for n := range GrantsMax {
		m, _, _ = m.SetGrant(Grant(fmt.Sprintf("device=d%d", n)), Granting{May: true, At: at})
	}
	if _, _, err := m.SetGrant("device=more", Granting{May: true}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%d grants and one more: %v", GrantsMax, err)
	}
	m, _, _ = m.SetGrant("device=d3", Granting{At: at})
	m, _, err := m.SetGrant("device=more", Granting{May: true, At: at})
	if _, kept := m.Grants["device=d3"]; err != nil || kept || len(m.Grants) != GrantsMax {
		t.Errorf("%d grants, %v; want the withdrawn one gone", len(m.Grants), err)
	}
}
