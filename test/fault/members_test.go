package fault

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pando.run/pando"
	"pando.run/pando/driver/etcd"
	"pando.run/pando/driver/trust"
)

// freePort of the loopback: whoever takes it in between makes the test fail, not lie.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// storeForMembers is a store that listens for members of a cluster.
func storeForMembers(t *testing.T) (at string, a *trust.Authority) {
	t.Helper()
	dir := t.TempDir()
	a, err := trust.OpenAuthority(filepath.Join(dir, "trust"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &etcd.Members{Listen: freePort(t), HostOf: trust.HostOf}
	if m.Certificate, m.Key, m.Authority, err = server.Files(filepath.Join(dir, "trust")); err != nil {
		t.Fatal(err)
	}
	s, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(dir, "store"), Members: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return "https://" + m.Listen, a
}

func member(t *testing.T, a *trust.Authority, h pando.HostName) *trust.Identity {
	t.Helper()
	i, err := a.Identity(h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestAMemberWritesItsOwnRecordsOnly(t *testing.T) {
	t.Parallel()
	at, a := storeForMembers(t)
	r, err := etcd.Dial(t.Context(), at, member(t, a, "h2").ToServer())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, _, err := r.Join(t.Context(), pando.Host{Name: "h2", Slot: 1}, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	web := pando.DefaultService("web")
	on := func(h pando.HostName) pando.Instance {
		return pando.Instance{ID: "web-1", Service: web, Host: h, Phase: pando.PhaseStarting}
	}
	for _, mine := range []pando.Stored{
		on("h2"), pando.Host{Name: "h2", Slot: 1}, pando.Intent{ID: "i1", Service: web}, pando.Decision{ID: "d1", Service: web}, pando.StateHead{Service: web},
	} {
		if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Put: []pando.Stored{mine}}); err != nil {
			t.Errorf("%s: %v", mine.Key(), err)
		}
	}
	for _, others := range []pando.Stored{
		on("h1"), pando.Service{ServiceKey: web}, pando.Revision{Service: web, Number: 1}, pando.Member{Name: "h2", Slot: 0},
	} {
		if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Put: []pando.Stored{others}}); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("h2 wrote %s: %v", others.Key(), err)
		}
		if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Delete: []pando.Key{others.Key()}}); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("h2 deleted %s: %v", others.Key(), err)
		}
	}
	if _, err := r.Commit(t.Context(), pando.Txn{Put: []pando.Stored{on("h2")}}); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("h2 wrote without its fence: %v", err)
	}
	if _, _, err := r.Join(t.Context(), pando.Host{Name: "h1"}, 5*time.Second); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("h2 joined as h1: %v", err)
	}
	if _, _, err := r.Lead(t.Context(), "control", "h2"); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("h2 leads: %v", err)
	}
}

func TestTheStoreIsOpenToMembersOnlyAndForNothingElse(t *testing.T) {
	t.Parallel()
	at, a := storeForMembers(t)
	stranger, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	alien := member(t, stranger, "h2").ToServer()
	alien.VerifyConnection = nil // it would not even speak to this server
	none := member(t, a, "h2").ToServer()
	none.GetClientCertificate = nil
	read := func(r *etcd.Registry) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Snapshot(ctx, pando.Root)
		return err
	}
	for name, identity := range map[string]bool{"another cluster's certificate": true, "no certificate": false} {
		with := none
		if identity {
			with = alien
		}
		r, err := etcd.Dial(t.Context(), at, with)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := read(r); !errors.Is(err, pando.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What a member's certificate is not for: etcd's own services, whatever client asks.
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{at}, TLS: member(t, a, "h2").ToServer(), Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	asks := map[string]func(context.Context) error{
		"put":     func(ctx context.Context) error { _, err := c.Put(ctx, "/pando/service/default/web", "{}"); return err },
		"delete":  func(ctx context.Context) error { _, err := c.Delete(ctx, "", clientv3.WithFromKey()); return err },
		"compact": func(ctx context.Context) error { _, err := c.Compact(ctx, 1); return err },
		"revoke":  func(ctx context.Context) error { _, err := c.Revoke(ctx, 1); return err },
		"members": func(ctx context.Context) error {
			_, err := c.MemberAdd(ctx, []string{"http://127.0.0.1:1"})
			return err
		},
		"users":  func(ctx context.Context) error { _, err := c.AuthDisable(ctx); return err },
		"alarms": func(ctx context.Context) error { _, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}); return err },
		"snapshot": func(ctx context.Context) error {
			s, err := c.Snapshot(ctx)
			if err == nil {
				_, err = s.Read(make([]byte, 1))
			}
			return err
		},
	}
	for name, ask := range asks {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := ask(ctx); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}
