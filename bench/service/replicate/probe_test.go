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

// awaited is a wait for the first byte of an answer at an address, from any program other than
// known.
type awaited struct {
	from  netip.AddrPort
	known string
	at    chan time.Time // zero: no answer came
}

// probePause is the pause between two probes. It is the resolution of the measurement, the same for
// every kind of start.
const probePause = 50 * time.Microsecond

// probes starts a thread in the network of the lab's host that serves waits. A probe is one request
// by blocking system calls, so that the Go scheduler does not add to the result.
func (b *bench) probes() chan<- awaited {
	all, in := make(chan awaited), make(chan error)
	go func() {
		// Never unlocked, because the thread is in another namespace; it ends with this goroutine.
		runtime.LockOSThread()
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

// first returns the time of the first answer of the new program at an address.
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

// connectWaitMax is how long a connection may take before the next try. A packet on a link that is
// not yet up is lost, and the kernel would repeat it only after a second.
const connectWaitMax = 2 * time.Millisecond

// probe returns the name that an address answers with, and the time of the first byte.
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
	_, err = unix.Write(fd, []byte("GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"))
	if err != nil {
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

// ready waits until a descriptor is ready.
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
