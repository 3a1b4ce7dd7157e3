package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pgregory.net/rapid"
)

// wires returns the two ends of a socket between a driver and a shim.
func wires(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for n, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[n] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// A message arrives as it was sent, with its descriptor, in any order of messages.
func TestMessagesBetweenDriverAndShimArriveWhole(t *testing.T) {
	a, b := wires(t)
	rapid.Check(t, func(t *rapid.T) {
		type sent struct {
			r  Reply
			fd bool
		}
		var all []sent
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			s := sent{Reply{Error: rapid.String().Draw(t, "error"), Code: rapid.Int().Draw(t, "code")},
				rapid.Bool().Draw(t, "fd")}
			s.r.Output = rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "output")
			fd := -1
			if s.fd {
				fd = int(os.Stderr.Fd())
			}
			if err := Send(a, s.r, fd); err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		for n, s := range all {
			var got Reply
			file, err := Receive(b, &got)
			if err != nil {
				t.Fatal(err)
			}
			if got.Error != strings.ToValidUTF8(s.r.Error, "\ufffd") || got.Code != s.r.Code ||
				!bytes.Equal(got.Output, s.r.Output) {
				t.Fatalf("message %d is %+v, want %+v", n, got, s.r)
			}
			if (file != nil) != s.fd {
				t.Fatalf("message %d came with a descriptor: %v, want %v", n, file != nil, s.fd)
			}
			if file != nil {
				file.Close()
			}
		}
	})
}

func TestAMessageThatIsTooLongIsRefused(t *testing.T) {
	a, b := wires(t)
	if _, err := a.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if _, err := Receive(b, &Reply{}); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("4 GiB: %v", err)
	}
	a.Close()
	if _, err := Receive(b, &Reply{}); err == nil {
		t.Error("a closed connection has a message")
	}
}

// pair returns two connected stream sockets with a small buffer.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for n, fd := range fds {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[n] = c.(*net.UnixConn)
		_ = ends[n].SetDeadline(time.Now().Add(5 * time.Second))
	}
	return ends[0], ends[1]
}

// A message is longer than the buffer of the socket. It arrives whole, with its descriptor.
func TestALongMessageArrivesWhole(t *testing.T) {
	for _, fd := range []int{-1, int(os.Stderr.Fd())} {
		a, b := pair(t)
		want := Reply{Output: bytes.Repeat([]byte{7}, 1<<20)}
		sent := make(chan error, 1)
		go func() { sent <- Send(a, want, fd) }()
		var got Reply
		f, err := Receive(b, &got)
		if err := <-sent; err != nil {
			t.Fatal("send:", err)
		}
		if err != nil || !bytes.Equal(got.Output, want.Output) || (f != nil) != (fd >= 0) {
			t.Errorf("descriptor %d: got %d bytes, descriptor %v, %v", fd, len(got.Output), f, err)
		}
		if f != nil {
			f.Close()
		}
	}
}

// A message that no shim takes is refused by its sender, with both numbers.
func TestNoMessageIsSentThatNoShimTakes(t *testing.T) {
	a, _ := pair(t)
	err := Send(a, Reply{Output: make([]byte, messageBytesMax)}, -1)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(messageBytesMax)) {
		t.Error(err)
	}
}
