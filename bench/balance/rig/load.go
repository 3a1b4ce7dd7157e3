package rig

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando/lab"
)

// Load is the load of one measurement. Its clients use blocking sockets on threads of their own, so
// that they cost as little as possible.
type Load struct {
	From    *lab.Box
	To      func(n int) netip.AddrPort // the address of connection n of a client
	Bytes   int                        // of an answer
	Short   bool                       // one connection per request
	Clients int
	Lasts   time.Duration
	// Rate is the number of requests per second, in an open loop. 0: as many as the clients can.
	Rate int
}

// Run applies the load. It returns the time of each request, in no order.
func (l Load) Run() ([]time.Duration, error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var out []time.Duration
	var errs []error
	begin := time.Now()
	for n := range l.Clients {
		all.Go(func() {
			var took []time.Duration
			err := l.From.Inside(func() (err error) { took, err = l.client(n, begin); return err })
			mu.Lock()
			defer mu.Unlock()
			out = append(out, took...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	all.Wait()
	if len(errs) > 0 {
		return out, fmt.Errorf("%d of %d clients: %w", len(errs), l.Clients, errs[0])
	}
	return out, nil
}

// client makes the requests of one client. In an open loop, a request counts from when it was due.
func (l Load) client(n int, begin time.Time) (took []time.Duration, err error) {
	c := conn(-1)
	defer func() { err = errors.Join(err, c.close()) }()
	answer := make([]byte, 1<<16)
	request := []byte(strconv.Itoa(l.Bytes) + "\n")
	every := time.Duration(0)
	if l.Rate > 0 {
		every = time.Second * time.Duration(l.Clients) / time.Duration(l.Rate)
	}
	at := begin.Add(every * time.Duration(n) / time.Duration(l.Clients))
	for dialed := n; time.Since(begin) < l.Lasts; {
		due := time.Now()
		if every > 0 {
			time.Sleep(time.Until(at))
			due, at = at, at.Add(every)
		}
		if c < 0 {
			if c, err = dial(l.To(dialed)); err != nil {
				return took, err
			}
			dialed++
		}
		if err := c.ask(request, answer, l.Bytes); err != nil {
			return took, err
		}
		took = append(took, time.Since(due))
		if l.Short {
			if err := c.close(); err != nil {
				return took, err
			}
			c = -1
		}
	}
	return took, nil
}

// conn is a blocking socket, or -1.
type conn int

const timeoutSeconds = 10

func dial(to netip.AddrPort) (conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for _, way := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		err = errors.Join(err,
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, way, &unix.Timeval{Sec: timeoutSeconds}))
	}
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}
	if errors.Is(err, unix.EINTR) { // a signal of the Go runtime: the kernel connects meanwhile
		err = connected(fd)
	}
	if err != nil {
		return -1, fmt.Errorf("connect to %s: %w", to, errors.Join(err, unix.Close(fd)))
	}
	return conn(fd), nil
}

// connected waits for the end of a connect that a signal has interrupted.
func connected(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, timeoutSeconds*1000)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			return unix.ETIMEDOUT
		case err != nil:
			return err
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err
	}
}

func (c conn) ask(request, answer []byte, size int) error {
	_, err := unix.Write(int(c), request)
	for errors.Is(err, unix.EINTR) { // nothing was written
		_, err = unix.Write(int(c), request)
	}
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	for got := 0; got < size; {
		n, err := unix.Read(int(c), answer)
		if n == 0 && err == nil {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("read an answer: %w", err)
		}
		got += max(n, 0)
	}
	return nil
}

func (c conn) close() error {
	if c < 0 {
		return nil
	}
	return unix.Close(int(c))
}
