package sockets

import (
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A talk has the socket's inode and the time since its last data, and shows whether its client is
// probed.
func TestATalkShowsHowLongItIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	quiet := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
	client, err := quiet.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	talk := func() Talk {
		all, err := Talks()
		at := slices.IndexFunc(all, func(k Talk) bool { return k.Local == at(client.LocalAddr()) })
		if err != nil || at < 0 {
			t.Fatalf("the connection is missing: %v", err)
		}
		return all[at]
	}
	raw, err := client.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	on := func(f func(fd int) error) {
		if err := raw.Control(func(fd uintptr) { err = f(int(fd)) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	on(func(fd int) error { return unix.Fstat(fd, &stat) })
	for time.Since(began) < time.Minute {
		k := talk()
		if uint64(k.Inode) != stat.Ino || k.Probed || k.Unanswered > 0 {
			t.Fatalf("%+v, want inode %d, without probes", k, stat.Ino)
		}
		if k.Idle() > 0 {
			break
		}
	}
	if idle := talk().Idle(); idle <= 0 || idle > time.Since(began)+time.Second {
		t.Errorf("it is idle for %v, %v after its begin", idle, time.Since(began))
	}
	on(func(fd int) error {
		return unix.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1)
	})
	if !talk().Probed {
		t.Error("its probes are not shown")
	}
}
