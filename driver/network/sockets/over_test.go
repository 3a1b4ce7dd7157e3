package sockets

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando/driver/sandbox/thread"
)

// A client closes, and its machine is gone before the server closes: the connection is over, unless
// data for the client are left.
func TestAConnectionThatBothSidesClosedIsOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for text, want := range map[string]int{"": 0, "bye": 1} {
		done := make(chan struct{})
		thread.Go(func() {
			defer close(done)
			listed, err := closeWithoutClient(text)
			if err != nil || listed != want {
				t.Errorf("with %q unsent, %d connections are listed, %v: want %d", text, listed, err, want)
			}
		})
		<-done
	}
}

// closeWithoutClient closes a connection at both sides while the link is down at the end, and counts
// the listed sockets of the server.
func closeWithoutClient(text string) (n int, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return 0, err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return 0, err
	}
	client, server, err := connect()
	if err != nil {
		return 0, err
	}
	if err := client.Close(); err != nil {
		return 0, err
	}
	if _, err := server.Read(make([]byte, 1)); err == nil { // it waits for the client's end
		return 0, net.ErrClosed
	}
	if err := netlink.LinkSetDown(lo); err != nil {
		return 0, err
	}
	own := at(server.LocalAddr())
	if text != "" {
		if _, err := server.Write([]byte(text)); err != nil {
			return 0, err
		}
	}
	if err := server.Close(); err != nil {
		return 0, err
	}
	all, err := TCP()
	talks, err2 := Talks()
	if err == nil {
		err = err2
	}
	for _, s := range all {
		if s.Local == own && s.State != FinWait2 {
			n++
		}
	}
	for _, k := range talks {
		if k.Local == own && k.State != FinWait2 {
			n++
		}
	}
	return n / 2, err
}

// connect makes a connection in the namespace of this thread.
func connect() (client, server net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	server, err = l.Accept()
	return client, server, err
}
