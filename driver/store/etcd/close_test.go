package etcd

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
)

// startForMembers runs a store with a door for members. It returns the door's address and a
// member's identity.
func startForMembers(t *testing.T) (s *Server, at string, member *trust.Identity) {
	t.Helper()
	dir := tempDir(t)
	a, err := trust.OpenAuthority(filepath.Join(dir, "trust"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if member, err = a.Identity("h2", time.Now()); err != nil {
		t.Fatal(err)
	}
	m := &Members{
		Listen: "127.0.0.1:0", TLS: server.Members("h2"), HostOf: trust.HostOf, Clock: clock.Clock{},
	}
	s, err = Start(t.Context(), ServerConfig{
		Dir: filepath.Join(dir, "store"), ClientSocket: filepath.Join(dir, "client"), Members: m,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{pando.Member{Name: "h2", Slot: 1}}})
	return s, s.MembersAddress(), member
}

// slowCloseMin is the least time of etcd's own end while a client or a watch is open: 5 to 7 s. A
// Close that avoids it takes tens of milliseconds.
const slowCloseMin = 4 * time.Second

// closes fails the test if Close waits for clients and watches.
func closes(t *testing.T, s *Server) {
	t.Helper()
	begun, ended := time.Now(), make(chan error, 1)
	go func() { ended <- s.Close() }()
	select {
	case err := <-ended:
		if took := time.Since(begun).Round(time.Millisecond); err != nil || took > slowCloseMin {
			t.Errorf("Close: %v after %v", err, took)
		}
	case <-time.After(patience):
		t.Fatalf("Close did not end within %v", patience)
	}
}

func TestAConnectionThatSaysNothingHoldsUpNoEnd(t *testing.T) {
	s, at, _ := startForMembers(t)
	for network, to := range map[string]string{"unix": s.doors[0].Addr().String(), "tcp": at} {
		c, err := net.Dial(network, to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	closes(t, s)
}

// A host with a cut link acknowledges nothing: its data stays in the server's socket.
func TestAMemberThatWasCutOffHoldsUpNoEnd(t *testing.T) {
	s, at, member := startForMembers(t)
	relay, cut := relay(t, at)
	r, err := Dial(context.Background(), "https://"+relay, member.ToServer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if _, _, err := r.Join(t.Context(), pando.Host{Name: "h2", Slot: 1}, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	w := r.Watch(t.Context(), pando.Root, 0)
	commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{service("before")}})
	next(t, w)
	cut()
	for range 8 {
		large := service("after")
		large.Reason = strings.Repeat("x", 256<<10)
		commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{large}})
	}
	closes(t, s)
}

// relay forwards connections to at until cut. After that it reads and writes nothing more, and
// closes nothing.
func relay(t *testing.T, at string) (address string, cut func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	pass := func(to, from net.Conn) {
		defer to.Close()
		text := make([]byte, 32<<10)
		for ctx.Err() == nil {
			n, err := from.Read(text)
			if ctx.Err() != nil {
				break
			}
			if _, failed := to.Write(text[:n]); err != nil || failed != nil {
				return
			}
		}
		<-t.Context().Done()
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", at)
			if err != nil {
				c.Close()
				return
			}
			go pass(to, c)
			go pass(c, to)
		}
	}()
	return l.Addr().String(), cancel
}
