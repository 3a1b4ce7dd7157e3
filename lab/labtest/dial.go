package labtest

import (
	"net"
	"time"

	"github.com/vishvananda/netns"

	"pando.run/pando/driver/sandbox/thread"
)

// Dialer opens TCP connections from a member of the lab in the test's own process, without the cost
// of a new process. The connections work from any goroutine.
func (m *Members) Dialer(host string) func(address string) (net.Conn, error) {
	m.Helper()
	return m.DialerWithin(host, Patience)
}

// DialerWithin is Dialer with a limit for each connection.
func (m *Members) DialerWithin(
	host string, most time.Duration,
) func(address string) (net.Conn, error) {
	m.Helper()
	type answer struct {
		conn net.Conn
		err  error
	}
	type call struct {
		address string
		answer  chan answer
	}
	calls, ready := make(chan call), make(chan error)
	pid := m.pid(host)
	thread.Go(func() {
		ns, err := netns.GetFromPid(pid)
		if err == nil {
			err = netns.Set(ns)
			ns.Close()
		}
		ready <- err
		for {
			select {
			case c := <-calls:
				conn, err := net.DialTimeout("tcp", c.address, most)
				c.answer <- answer{conn, err}
			case <-m.Context().Done():
				return
			}
		}
	})
	if err := <-ready; err != nil {
		m.Fatalf("enter the network of %s: %v", host, err)
	}
	return func(address string) (net.Conn, error) {
		c := call{address, make(chan answer, 1)}
		select {
		case calls <- c:
		case <-m.Context().Done():
			return nil, m.Context().Err()
		}
		a := <-c.answer
		return a.conn, a.err
	}
}
