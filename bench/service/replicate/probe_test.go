//go:build bench

package replicate

import (
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando/lab/labtest"
)

// awaited is a first byte that is waited for: of an answer at an address that is not from somebody who is known.
type awaited struct {
	from  netip.AddrPort
	known string
	at    chan time.Time // zero: nobody came
}

// probePause is what a probe leaves to the machine before the next one. It is the resolution of what is measured, the same for
// every way to start.
const probePause = 50 * time.Microsecond

// probes answers on a thread of its own in the network of the lab's host. A probe is one request by system calls that block: the
// turns of this process's own scheduler are not what a start costs.
func (b *bench) probes() chan<- awaited {
	all, in := make(chan awaited), make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in another namespace and ends with this goroutine
		ns, err := netns.GetFromPid(b.Lab.Hosts[0].Pid)
		if err == nil {
			err = netns.Set(ns)
			ns.Close()
		}
		in <- err
		for {
			select {
			case a := <-all:
				a.at <- a.wait()
			case <-b.Context().Done():
				return
			}
		}
	}()
	if err := <-in; err != nil {
		b.Fatal(err)
	}
	return all
}

// first is when an address answered that is of the new program.
func (b *bench) first(address, known string) time.Time {
	a := awaited{netip.MustParseAddrPort(address), known, make(chan time.Time, 1)}
	b.ask <- a
	at := <-a.at
	if at.IsZero() {
		b.Fatalf("%s never answered as anybody but %q", address, known)
	}
	return at
}

func (a awaited) wait() time.Time {
	for deadline := time.Now().Add(labtest.Patience); time.Now().Before(deadline); {
		if name, at, err := probe(a.from); err == nil && name != a.known {
			return at
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(probePause)}, nil)
	}
	return time.Time{}
}

// connectWaitMax is how long a connection may take before another one is tried: what is sent on a link that is not yet up is lost,
// and would be sent again a second later.
const connectWaitMax = 2 * time.Millisecond

// probe is who answers at an address, and when the first byte came.
func probe(address netip.AddrPort) (name string, at time.Time, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", at, err
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())})
	if err == unix.EINPROGRESS {
		err = ready(fd, unix.POLLOUT, connectWaitMax)
	}
	if err != nil {
		return "", at, err
	}
	if _, err = unix.Write(fd, []byte("GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")); err != nil {
		return "", at, err
	}
	var text []byte
	for piece := make([]byte, 4096); ; {
		if err := ready(fd, unix.POLLIN, labtest.Patience); err != nil {
			return "", at, err
		}
		n, err := unix.Read(fd, piece)
		if at.IsZero() {
			at = time.Now()
		}
		if text = append(text, piece[:max(n, 0)]...); err != nil {
			return "", at, err
		}
		if n == 0 {
			break
		}
	}
	head, name, whole := strings.Cut(string(text), "\r\n\r\n")
	if !whole || !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		return "", at, unix.EPROTO
	}
	return name, at, nil
}

// ready waits until a descriptor is.
func ready(fd int, events int16, most time.Duration) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int(most/time.Millisecond))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		default:
			return nil
		}
	}
}
