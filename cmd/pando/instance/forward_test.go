package instance

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"pando.run/pando/api/session"
)

func TestForwardedPorts(t *testing.T) {
	for text, want := range map[string][2]uint16{
		"80": {80, 80}, "8080:80": {8080, 80}, "0:80": {0, 80}, "80:0": {}, ":80": {}, "80:": {},
		"x": {}, "70000": {}, "1:2:3": {}, "0": {},
	} {
		local, remote, err := forwarded(text)
		if [2]uint16{local, remote} != want || (err == nil) != (want != [2]uint16{}) {
			t.Errorf("%q: %d:%d, %v", text, local, remote, err)
		}
	}
}

// next answers each byte of a session's input with the byte plus one. It ends with the input.
func next(c net.Conn) {
	defer c.Close()
	w := session.NewWriter(c)
	for {
		kind, b, err := session.Read(c)
		if err != nil {
			return
		}
		if kind == session.EOF {
			_ = w.SendJSON(session.Exit, session.End{})
			return
		}
		for i := range b {
			b[i]++
		}
		if w.Send(session.Output, b) != nil {
			return
		}
	}
}

// Each client gets a connection of its own. The end of its input still brings the answer, a failure
// closes that client alone, and the end of the command closes all.
func TestConnectionsAreForwarded(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refuse, failures, ended := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	begin := func(context.Context) (io.ReadWriteCloser, error) {
		select {
		case err := <-refuse:
			return nil, err
		default:
		}
		near, far := net.Pipe()
		go next(far)
		return near, nil
	}
	go func() { ended <- forward(ctx, l, begin, func(err error) { failures <- err }) }()
	dial := func() *net.TCPConn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		return c.(*net.TCPConn)
	}
	for range 2 * forwardsMax { // a place is free again after each
		c := dial()
		if _, err := io.WriteString(c, "HAL"); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); string(b) != "IBM" || err != nil {
			t.Fatalf("the answer is %q, %v", b, err)
		}
	}
	no := errors.New("nothing listens")
	refuse <- no
	if b, err := io.ReadAll(dial()); len(b) > 0 || err != nil && !errors.Is(err, net.ErrClosed) {
		t.Logf("a refused client: %q, %v", b, err)
	}
	if err := <-failures; !errors.Is(err, no) {
		t.Errorf("the failure is %v", err)
	}
	open := dial()
	if _, err := io.WriteString(open, "A"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(open, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	end()
	if err := <-ended; err != nil {
		t.Errorf("its end: %v", err)
	}
	if _, err := io.ReadAll(open); err != nil && errors.Is(err, context.DeadlineExceeded) {
		t.Error("an open connection stays after the end")
	}
}

func TestPlacesOfACopy(t *testing.T) {
	for arg, want := range map[string]place{
		"web:/srv": {"web", "/srv"}, "web/web-1:a b": {"web/web-1", "a b"}, "web:": {"web", "."},
		"web:a:b": {"web", "a:b"}, "./web:x": {}, "/tmp/a:b": {}, "file": {}, ":x": {}, "../a:b": {},
	} {
		if got, ok := cutRemote(arg); got != want || ok != (want != place{}) {
			t.Errorf("%q is %v, %t", arg, got, ok)
		}
	}
	for p, want := range map[string][2]string{
		"/a/b": {"/a", "b"}, "b": {"./.", "b"}, "/": {"/", "."}, ".": {"./.", "."},
		"-x/-y": {"./-x", "-y"}, "..": {"./..", "."}, "/a/b/": {"/a", "b"},
	} {
		if dir, base := split(p); [2]string{dir, base} != want {
			t.Errorf("%q is %q and %q", p, dir, base)
		}
	}
}
