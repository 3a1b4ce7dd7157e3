package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
)

// longPatience bounds the wait for elections on a busy machine.
const longPatience = time.Minute

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	until := time.Now().Add(longPatience)
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s: %v, not within %v", what, err, longPatience)
		}
		_ = pando.Sleep(t.Context(), clock.Clock{}, 20*time.Millisecond)
	}
}

// puts writes a service until the store takes it.
func puts(t *testing.T, r *Registry, name string) {
	t.Helper()
	eventually(t, "write "+name, func() error {
		_, err := r.Commit(context.Background(), pando.Txn{Put: []pando.Stored{service(name)}})
		return err
	})
}

// peerCluster is several servers in this process, with one authority.
type peerCluster struct {
	*testing.T
	authority *trust.Authority
	files     trust.PeerFiles
	identity  *trust.Identity
}

func newPeerCluster(t *testing.T) *peerCluster {
	t.Helper()
	dir := t.TempDir()
	a, err := trust.OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, err := a.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	files, err := i.WriteFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &peerCluster{t, a, files, i}
}

// seat is the place of one server: its folder and its address outlive it.
type seat struct {
	name, dir, address string
	*Server
}

// seats counts the seats of this process.
var seats atomic.Int32

// seat returns a place at a loopback address that no other process uses: it has this process's id.
func (c *peerCluster) seat(name string) *seat {
	pid := os.Getpid()
	address := fmt.Sprintf("127.%d.%d.%d:%d", 128+pid>>16&127, pid>>8&255, pid&255,
		10000+seats.Add(1))
	return &seat{name: name, dir: tempDir(c.T), address: address}
}

func (c *peerCluster) config(s *seat, join map[string]string) ServerConfig {
	return ServerConfig{
		Dir: s.dir, ClientSocket: filepath.Join(s.dir, "client"), Name: s.name,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Peers: &Peers{
			Listen: s.address, TLS: c.identity.Servers(), Join: join, ServerName: trust.ServerName,
			Certificate: c.files.Certificate, Authority: c.files.Authority, Clock: clock.Clock{},
		},
	}
}

// start starts a server, which waits for a majority.
func (c *peerCluster) start(s *seat, join map[string]string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), longPatience)
	defer cancel()
	var err error
	if s.Server, err = Start(ctx, c.config(s, join)); err != nil {
		c.Fatalf("start server %s: %v", s.name, err)
	}
	c.Cleanup(func() { s.Close() })
}

// A raft message writes any record. Only servers of the cluster reach the peer port.
func TestStrangersAndMembersChangeNothingAtThePeerPort(t *testing.T) {
	c := newPeerCluster(t)
	s := c.seat("one")
	c.start(s, nil)
	before := commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{service("web")}})
	foreign, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	member, err := c.authority.Identity("two", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := foreign.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(i *trust.Identity) *tls.Config {
		to := i.ToServer()
		to.VerifyConnection = nil // the caller accepts every server
		return to
	}
	for who, conf := range map[string]*tls.Config{
		"a stranger without a certificate": {InsecureSkipVerify: true},
		"a member":                         certificate(member),
		"a server of another cluster":      certificate(stranger),
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
		for _, path := range []string{"/raft", "/raft/snapshot", "/members", "/version", "/leases"} {
			resp, err := client.Post("https://"+s.address+path, "", strings.NewReader("\x08\x03"))
			if err == nil {
				resp.Body.Close()
				t.Errorf("%s at %s: answered %s", who, path, resp.Status)
			}
		}
	}
	if at := listeners(t); len(at) == 0 {
		t.Error("the test finds no listening socket")
	} else {
		for _, l := range at {
			if strings.HasPrefix(l[1], "@") {
				t.Errorf("the abstract socket %s", l[1])
			}
		}
	}
	own := &http.Client{Transport: &http.Transport{TLSClientConfig: c.identity.ToServer()}}
	resp, err := own.Get("https://" + s.address + "/version")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("a server is refused: %v, %v", resp, err)
	}
	resp.Body.Close()
	after, err := s.Registry().Snapshot(t.Context(), pando.Root)
	if err != nil || after.Revision != before || len(after.Records) != 1 {
		t.Errorf("revision %d became %d with %d records (%v)", before, after.Revision,
			len(after.Records), err)
	}
}

func TestTheSameNameOrAddressIsRefused(t *testing.T) {
	t.Parallel()
	c := newPeerCluster(t)
	one := c.seat("one")
	c.start(one, nil)
	r := one.Registry()
	_, err := r.AddServer(t.Context(), "one", "127.0.0.1:1")
	if !errors.Is(err, pando.ErrExists) || !strings.Contains(err.Error(), "pando servers rm") {
		t.Errorf("a second server of one name: %v", err)
	}
	_, err = r.AddServer(t.Context(), "two", one.address)
	if !errors.Is(err, pando.ErrExists) {
		t.Errorf("a second server at one address: %v", err)
	}
	two := c.seat("two")
	for range 2 { // the answer may be lost
		var join map[string]string
		eventually(t, "add two", func() (err error) {
			join, err = r.AddServer(t.Context(), "two", two.address)
			return err
		})
		if len(join) != 2 || join["two"] != two.address || join["one"] != one.address {
			t.Errorf("the servers to join are %v", join)
		}
	}
	_, err = r.AddServer(t.Context(), "three", "127.0.0.1:1")
	if !errors.Is(err, pando.ErrConflict) || !strings.Contains(err.Error(), two.address) {
		t.Errorf("a third server before the second has started: %v", err)
	}
	err = r.RemoveServer(t.Context(), two.address, nil)
	if err != nil {
		t.Errorf("a server that never started stays: %v", err)
	}
}

func TestAServerGoesOnlyIfTheOthersHaveAQuorum(t *testing.T) {
	peers := func(names ...string) (all []Peer) {
		for _, n := range names {
			name, learner := strings.CutSuffix(n, "?")
			all = append(all, Peer{Name: name, Address: name + ":7404", Learner: learner})
		}
		return all
	}
	for _, c := range []struct {
		all         []Peer
		name, alive string
		want        error
		says        string
	}{
		{peers("a", "b", "c"), "a", "a b c", nil, ""},
		{peers("a", "b", "c"), "c", "a b", nil, ""},
		{peers("a", "b", "c"), "a", "a b", pando.ErrRefused, "pando servers rm c"},
		{peers("a", "b"), "a", "a b", nil, ""},
		{peers("a", "b"), "a", "a", pando.ErrRefused, "start b"},
		{peers("a", "b?"), "a", "a b", pando.ErrRefused, "no vote yet"},
		{peers("a", "b?"), "b", "a", nil, ""},
		{peers("a"), "a", "a", pando.ErrRefused, "the only server"},
		{peers("a", "b", "c"), "d", "a b c", pando.ErrNotFound, "pando servers ls"},
		{peers("a", "b", "c", "d", "e"), "a", "b c d", nil, ""},
		{peers("a", "b", "c", "d", "e"), "a", "b c", pando.ErrRefused, "start d and e"},
	} {
		answers := map[string]bool{}
		for _, n := range strings.Fields(c.alive) {
			answers[n] = true
		}
		err := MayGo(c.all, c.name, answers)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s of %v with %s: %v", c.name, c.all, c.alive, err)
		}
	}
}
