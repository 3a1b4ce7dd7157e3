package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd/etcdtest"
)

// theirs is a running etcd of others.
type theirs struct {
	*testing.T
	*etcdtest.Etcd
	program *exec.Cmd
}

// loopback returns an address:port that no other process uses: the address has this process's id.
func loopback() netip.AddrPort {
	pid := os.Getpid()
	at := netip.AddrFrom4([4]byte{127, byte(128 | pid>>16&127), byte(pid >> 8), byte(pid)})
	return netip.AddrPortFrom(at, uint16(20000+2*seats.Add(1)))
}

func startTheirs(t *testing.T, program string, flags ...string) *theirs {
	t.Helper()
	e := &theirs{T: t, Etcd: etcdtest.New(t, time.Now(), program, t.TempDir(), loopback(), flags...)}
	e.run()
	return e
}

// run starts the program and waits until it answers.
func (e *theirs) run() {
	e.Helper()
	log := &strings.Builder{}
	e.program = exec.Command(e.Argv[0], e.Argv[1:]...)
	e.program.Stdout, e.program.Stderr = log, log
	if err := e.program.Start(); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(e.kill)
	r := e.client()
	defer r.Close()
	eventually(e.T, "etcd to answer", func() error {
		_, err := r.Snapshot(e.Context(), "/none")
		return err
	})
}

func (e *theirs) kill() {
	_ = e.program.Process.Kill()
	_ = e.program.Wait()
}

// client returns a client that is not Pando's.
func (e *theirs) client() *Registry {
	e.Helper()
	r, err := e.foreign().dial(context.Background())
	if err != nil {
		e.Fatal(err)
	}
	return r
}

func (e *theirs) foreign(endpoints ...string) Foreign {
	e.Helper()
	return Foreign{Endpoints: append(endpoints, e.Endpoint), Clock: clock.Clock{},
		TLS: tlsOf(e.T, e.CA, e.Certificate, e.Key)}
}

func tlsOf(t *testing.T, ca, certificate, key string) *tls.Config {
	t.Helper()
	c, err := transport.TLSInfo{TrustedCAFile: ca, CertFile: certificate, KeyFile: key}.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serve starts the doors to the etcd. It returns the endpoints of both.
func (e *theirs) serve(a *trust.Authority, before ...string) (s *Server, near, far string) {
	e.Helper()
	dir := tempDir(e.T)
	i, err := a.Identity("", time.Now())
	if err != nil {
		e.Fatal(err)
	}
	f := e.foreign(before...)
	s, err = Start(e.Context(), ServerConfig{
		Foreign: &f, ClientSocket: filepath.Join(dir, "client"), Log: silence(),
		Members: &Members{Listen: "127.0.0.1:0", TLS: i.Members("h2"), HostOf: trust.HostOf,
			Clock: clock.Clock{}},
	})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { s.Close() })
	return s, "unix://" + filepath.Join(dir, "client"), "https://" + s.MembersAddress()
}

func silence() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func anAuthority(t *testing.T) *trust.Authority {
	t.Helper()
	a, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Two servers on one foreign etcd have the same records, elect one leader, and outlive each other.
func TestTwoServersShareAForeignEtcd(t *testing.T) {
	t.Parallel()
	e := startTheirs(t, etcdtest.Program(t))
	a := anAuthority(t)
	one, near, _ := e.serve(a, "https://"+refuses(t)) // its first endpoint is dead
	two, _, _ := e.serve(a)
	watch := two.Registry().Watch(t.Context(), pando.Root+"service/", 0)
	agent := dial(t, near)
	at := commit(t, agent, pando.Txn{Put: []pando.Stored{service("web")}})
	if b := next(t, watch); b.Revision != at || len(b.Changes) != 1 {
		t.Errorf("the other server saw %+v, want revision %d", b, at)
	}
	old, lost, err := one.Registry().Lead(t.Context(), "control", "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	within(t, "one to lose its leadership", lost)
	next, _, err := two.Registry().Lead(t.Context(), "control", "two")
	if err != nil {
		t.Fatal(err)
	}
	late := pando.Txn{Fence: old, Put: []pando.Stored{service("x")}}
	_, err = two.Registry().Commit(t.Context(), late)
	if !errors.Is(err, pando.ErrFenced) {
		t.Errorf("the dead leader wrote: %v", err)
	}
	commit(t, two.Registry(), pando.Txn{Fence: next, Put: []pando.Stored{service("api")}})
}

// The gate holds members to their own part of a foreign etcd, as of an embedded one. Nothing of
// others is within reach.
func TestAMemberReachesItsOwnPartOfAForeignEtcdAlone(t *testing.T) {
	t.Parallel()
	e := startTheirs(t, etcdtest.Program(t))
	a := anAuthority(t)
	s, _, far := e.serve(a)
	theirs := e.client()
	defer theirs.Close()
	if _, err := theirs.client.Put(t.Context(), "/registry/pods/a", "theirs"); err != nil {
		t.Fatal(err)
	}
	web, vault := pando.DefaultService("web"), pando.DefaultService("vault")
	mine := pando.Instance{
		ID: "web-1", Service: web, Host: "h2", Phase: pando.PhaseStarting, Revision: 1,
	}
	commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{
		pando.Member{Name: "h2", Slot: 2, Address: netip.MustParseAddr("127.0.0.1")}, mine,
		pando.Revision{Service: web, Number: 1}, pando.Revision{Service: vault, Number: 1},
	}})
	h2, err := a.Identity("h2", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r, err := Dial(t.Context(), far, h2.ToServer())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	host := pando.Host{Name: "h2", Slot: 2, Address: netip.MustParseAddr("127.0.0.1")}
	host.Instances4, host.Instances6 = pando.InstanceRange(2)
	f, lost, err := r.Join(t.Context(), host, 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	mine.Phase = pando.PhaseReady
	commit(t, r, pando.Txn{Fence: f, Put: []pando.Stored{mine}})
	for key, want := range map[pando.Key]int{pando.RevisionsOf(web): 1, pando.RevisionsOf(vault): 0} {
		got, err := r.Snapshot(t.Context(), key)
		if err != nil || len(got.Records) != want {
			t.Errorf("h2 reads %d records of %s (%v), want %d", len(got.Records), key, err, want)
		}
	}
	for _, key := range []pando.Key{"/registry/", pando.Root + "secret/"} {
		if _, err := r.Snapshot(t.Context(), key); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("h2 reads %s: %v", key, err)
		}
	}
	bad := []pando.Stored{service("web"), pando.Member{Name: "h2", Slot: 2, Server: true}}
	for _, v := range bad {
		if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Put: []pando.Stored{v}}); !errors.Is(err,
			pando.ErrForbidden) {
			t.Errorf("h2 writes %s: %v", v.Key(), err)
		}
	}
	goneWithItsLease(t, theirs, pando.HostKey("h2"), lost, r)
}

// goneWithItsLease checks that the record of a host goes with its lease.
func goneWithItsLease(
	t *testing.T, r *Registry, k pando.Key, lost <-chan struct{}, agent *Registry,
) {
	t.Helper()
	select {
	case <-lost:
		t.Error("the lease was lost while its agent lived")
	default:
	}
	agent.Close()
	eventually(t, "the end of "+string(k), func() error {
		got, err := r.Snapshot(t.Context(), k)
		if err == nil && len(got.Records) > 0 {
			err = fmt.Errorf("it is there")
		}
		return err
	})
}

// A watch and a lease continue after a restart of the foreign etcd, and nothing is written between.
func TestARestartOfAForeignEtcdCostsNothing(t *testing.T) {
	t.Parallel()
	e := startTheirs(t, etcdtest.Program(t))
	s, near, _ := e.serve(anAuthority(t))
	agent := dial(t, near)
	at := commit(t, agent, pando.Txn{Put: []pando.Stored{service("web")}})
	watch := agent.Watch(t.Context(), pando.Root+"service/", at)
	_, lost, err := s.Registry().Join(t.Context(), pando.Host{Name: "h1"}, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	e.kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = agent.Commit(ctx, pando.Txn{Put: []pando.Stored{service("api")}})
	if !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("a write without an etcd: %v", err)
	}
	e.run()
	puts(t, agent, "later")
	if b := next(t, watch); b.Changes[0].Key != service("later").Key() {
		t.Errorf("the watch continued with %s", b.Changes[0].Key)
	}
	select {
	case <-lost:
		t.Error("the lease was lost")
	default:
	}
}

// Each unfit etcd is refused with its cause and the next step.
func TestAnUnfitEtcdIsRefusedWithItsCause(t *testing.T) {
	t.Parallel()
	e := startTheirs(t, etcdtest.Program(t))
	other := etcdtest.New(t, time.Now(), "", t.TempDir(), loopback())
	small := startTheirs(t, etcdtest.Program(t), "--max-txn-ops", "128")
	for _, c := range []struct {
		name string
		f    Foreign
		want error
		text string
	}{
		{"fit", e.foreign(), nil, ""},
		{"fit behind a dead one", e.foreign("https://" + refuses(t)), nil, ""},
		{"none", Foreign{Clock: clock.Clock{}}, pando.ErrInvalid, "no endpoint"},
		{"wrong CA", Foreign{Endpoints: []string{e.Endpoint}, Clock: clock.Clock{},
			TLS: tlsOf(t, other.CA, e.Certificate, e.Key)}, pando.ErrForbidden, "--store-ca"},
		{"foreign client", Foreign{Endpoints: []string{e.Endpoint}, Clock: clock.Clock{},
			TLS: tlsOf(t, e.CA, other.Certificate, other.Key)}, pando.ErrForbidden, "--store-cert"},
		{"dead", Foreign{Endpoints: []string{"https://" + refuses(t)}, Clock: clock.Clock{}},
			pando.ErrUnavailable, "no etcd answers"},
		{"in the clear", Foreign{Endpoints: []string{"http://192.0.2.1:2379"}, Clock: clock.Clock{}},
			pando.ErrInvalid, "in the clear"},
		{"small transactions", small.foreign(), pando.ErrUnsupported, "--max-txn-ops=1024"},
	} {
		err := c.f.Check(t.Context())
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		} else if err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v names no %q", c.name, err, c.text)
		}
	}
}

// Debian's etcd of bookworm is 3.4.
func TestAnOldEtcdIsRefused(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("Debian's etcd-server is not installed")
	}
	e := startTheirs(t, program)
	err = e.foreign().Check(t.Context())
	if !errors.Is(err, pando.ErrUnsupported) || !strings.Contains(err.Error(), "3.4.") {
		t.Errorf("an old etcd: %v", err)
	}
	for version, want := range map[string]bool{"3.4.23": false, "3.5.0": true, "3.10.1": true,
		"4.0.0": true, "2.9": false, "": false, "x.y": false} {
		if recent(version) != want {
			t.Errorf("version %q is recent: %v", version, !want)
		}
	}
}

// An etcd with users gives Pando the keys under its root alone.
func TestAUserWithoutItsRoleIsRefused(t *testing.T) {
	t.Parallel()
	e := startTheirs(t, etcdtest.Program(t))
	root := e.client()
	defer root.Close()
	certificate, key := e.Sign(t, "root")
	c := root.client
	for _, do := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := c.RoleAdd(ctx, "root"); return err },
		func(ctx context.Context) error { _, err := c.UserAdd(ctx, "root", "x"); return err },
		func(ctx context.Context) error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func(ctx context.Context) error { _, err := c.UserAdd(ctx, "pando", "x"); return err },
		func(ctx context.Context) error { _, err := c.RoleAdd(ctx, "pando"); return err },
		func(ctx context.Context) error { _, err := c.UserGrantRole(ctx, "pando", "pando"); return err },
		func(ctx context.Context) error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err := do(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	err := e.foreign().Check(t.Context())
	if !errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), "grant-permission") {
		t.Fatalf("a user without a role: %v", err)
	}
	admin := Foreign{Endpoints: []string{e.Endpoint}, Clock: clock.Clock{},
		TLS: tlsOf(t, e.CA, certificate, key)}
	r, err := admin.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = r.client.RoleGrantPermission(t.Context(), "pando", string(pando.Root),
		clientv3.GetPrefixRangeEnd(string(pando.Root)), clientv3.PermissionType(clientv3.PermReadWrite))
	if err != nil {
		t.Fatal(err)
	}
	s, near, _ := e.serve(anAuthority(t))
	commit(t, dial(t, near), pando.Txn{Put: []pando.Stored{service("web")}})
	if _, _, err := s.Registry().Lead(t.Context(), "control", "one"); err != nil {
		t.Errorf("lead with a role: %v", err)
	}
	if s.Size().FileBytes == 0 {
		eventually(t, "the size of the database", func() error {
			if s.Size().FileBytes == 0 {
				return errors.New("unknown")
			}
			return nil
		})
	}
	_, err = s.Registry().Snapshot(t.Context(), "/registry/")
	if !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("Pando's user reads the keys of others: %v", err)
	}
}
