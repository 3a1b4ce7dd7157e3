package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"pando.run/pando"
	"pando.run/pando/api/session"
	"pando.run/pando/driver/network/netspace"
)

// dialInsideMax is the time for a connection to a port of an instance.
const dialInsideMax = 5 * time.Second

// connection opens a TCP connection to a port inside the sandbox, first at localhost and then at
// the instance's own address. It returns the near end of a session with the connection's bytes.
func (b *sandbox) connection(ctx context.Context, port uint16) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, dialInsideMax)
	defer cancel()
	ns, err := netns.GetFromPath(b.slot.netns())
	if err != nil {
		return nil, fmt.Errorf("enter the network of %s: %w", b.slot.Instance, err)
	}
	defer ns.Close()
	var c net.Conn
	err = netspace.In(ns, func() error {
		var failed []error
		for _, at := range []string{"127.0.0.1", "::1", b.slot.IP4.String()} {
			var err error
			// Not by name and not by two families at once: the socket must be made on this thread.
			c, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp",
				net.JoinHostPort(at, strconv.Itoa(int(port))))
			if err == nil {
				return nil
			}
			failed = append(failed, err)
		}
		return failed[0]
	})
	if err != nil {
		return nil, fmt.Errorf("%w: nothing takes connections at port %d inside %s: %w",
			pando.ErrUnreachable, port, b.slot.Instance, errors.Unwrap(err))
	}
	near, far := net.Pipe()
	go passOn(far, c.(*net.TCPConn))
	return near, nil
}

// passOn passes a connection's bytes on as frames of a session, until the program closes it or the
// caller hangs up. Then it closes both.
func passOn(caller net.Conn, c *net.TCPConn) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer c.Close() // the program sees the end of a caller that hangs up
		for {
			kind, b, err := session.Read(caller)
			if err != nil {
				return
			}
			switch kind {
			case session.Input:
				_, err = c.Write(b)
			case session.EOF:
				err = c.CloseWrite()
			}
			if err != nil {
				return
			}
		}
	})
	out := session.NewWriter(caller)
	_, err := io.Copy(out.Stream(session.Output), c)
	end := session.End{}
	if err != nil {
		end.Code = 1
	}
	_ = out.SendJSON(session.Exit, end) // the caller may be gone
	caller.Close()
	wg.Wait()
}
