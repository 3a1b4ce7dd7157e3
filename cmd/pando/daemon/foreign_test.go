package daemon

import (
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
)

// placeFrom parses flags as `pando up` does.
func placeFrom(t *testing.T, dir string, args ...string) (place, error) {
	t.Helper()
	var p place
	c := &cobra.Command{}
	p.flags(c)
	args = append([]string{"--data-dir", dir, "--host", "h1"}, args...)
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return p, completeStore(&p)
}

func TestTheFlagsOfAForeignStore(t *testing.T) {
	dir := t.TempDir()
	p, err := placeFrom(t, dir)
	if err != nil || p.Store.there() {
		t.Fatalf("without flags the store is %+v (%v)", p.Store, err)
	}
	if _, err := placeFrom(t, dir, "--store-ca", "ca.pem"); err == nil {
		t.Error("--store-ca without --store is accepted")
	}
	if _, err := placeFrom(t, dir, "--store", "https://a:1", "--store-cert", "c.pem"); err == nil {
		t.Error("--store-cert without --store-key is accepted")
	}
	p, err = placeFrom(t, dir, "--store", "https://a:1,https://b:1", "--store-ca", "ca.pem",
		"--store-cert", "c.pem", "--store-key", "k.pem")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Store.Endpoints) != 2 || !filepath.IsAbs(p.Store.CA) || !filepath.IsAbs(p.Store.Key) {
		t.Errorf("the store is %+v", p.Store)
	}
	// The server gets the same flags from `pando up`, and a later `pando up` needs none.
	again, err := placeFrom(t, dir, p.Store.args()...)
	if err != nil || !slices.Equal(again.Store.args(), p.Store.args()) {
		t.Errorf("passed on, the store is %+v (%v)", again.Store, err)
	}
	if had, err := p.hasStore(); had || err != nil {
		t.Errorf("a host without a start has a store (%v)", err)
	}
	if err := noteStore(p); err != nil {
		t.Fatal(err)
	}
	again, err = placeFrom(t, dir)
	if err != nil || !slices.Equal(again.Store.args(), p.Store.args()) {
		t.Errorf("noted, the store is %+v (%v)", again.Store, err)
	}
	if had, err := p.hasStore(); !had || err != nil {
		t.Errorf("a host with a note has no store (%v)", err)
	}
}

// A server refuses the records of another cluster, and the records by which it was taken out.
func TestAForeignStoreIsThatOfThisCluster(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	s, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(dir, "store"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := placeFrom(t, dir, "--store", "https://a:1")
	if err != nil {
		t.Fatal(err)
	}
	own, err := trust.OpenAuthority(filepath.Join(dir, "trust"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := trust.OpenAuthority(filepath.Join(dir, "other"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for n, c := range []struct {
		has  []pando.Stored
		by   *trust.Authority
		want error
	}{
		{nil, own, nil},
		{[]pando.Stored{pando.Cluster{ID: "c", Authority: fingerprint(own)}}, own, nil},
		{nil, other, pando.ErrExists},
		{[]pando.Stored{pando.Member{Name: "h1", Server: true}}, own, nil},
		{[]pando.Stored{pando.Member{Name: "h1"}}, own, etcd.ErrRemoved},
		{[]pando.Stored{pando.Cluster{ID: "c"}}, own, pando.ErrExists}, // of an earlier build
	} {
		if len(c.has) > 0 {
			if _, err := s.Registry().Commit(t.Context(), pando.Txn{Put: c.has}); err != nil {
				t.Fatal(err)
			}
		}
		if err := ownStore(p, c.by)(t.Context(), s.Registry()); !errors.Is(err, c.want) {
			t.Errorf("case %d: %v, want %v", n, err, c.want)
		}
	}
}

// The end of a server on a foreign etcd needs no majority, but one other server.
func TestTheEndOfAServerOnAForeignEtcd(t *testing.T) {
	named := func(name string, answers bool) server {
		return server{Peer: etcd.Peer{Name: name}, Answers: answers, Foreign: true}
	}
	text, err := afterEnd([]server{named("a", true), named("b", true), named("c", false)}, "a")
	if err != nil || !strings.Contains(text, "1 other server can decide") {
		t.Errorf("with another one: %q (%v)", text, err)
	}
	_, err = afterEnd([]server{named("a", true), named("b", false)}, "a")
	if !errors.Is(err, pando.ErrRefused) {
		t.Errorf("with a silent one: %v", err)
	}
}
