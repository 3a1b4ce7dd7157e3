package steering

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
)

// Drains opens this many connections while one of two instances drains and comes back, again and
// again. opened counts those opened entirely within a drain. strays counts those of them that
// reached the draining instance. strays must be 0, because Publish had returned before.
func Drains(
	t *testing.T, connections int, open func(t *testing.T, uplinks ...string) Subject,
) (opened, strays int64) {
	t.Helper()
	s := newStand(t, open, "a", "b")
	for name, b := range s.boxes {
		serve(t, b, name)
	}
	d := &drains{stand: s, left: int64(connections), done: make(chan struct{}, 1)}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	var callers sync.WaitGroup
	for n := range 4 {
		callers.Go(func() {
			if err := d.call(n); err != nil {
				t.Error(err)
			}
		})
	}
	var ended sync.WaitGroup
	ended.Go(func() { callers.Wait(); close(d.done) })
	const held = 200 // connections per drain
	for n := 0; atomic.LoadInt64(&d.left) > 0 && !t.Failed(); n++ {
		d.drained.Store(nil) // the drained instance comes back now
		name, stays := []string{"a", "b"}[n%2], []string{"b", "a"}[n%2]
		s.publish(t, s.endpoint(name, 0), s.endpoint(stays, 100))
		d.drained.Store(&name)
		for until := atomic.LoadInt64(&d.left) - held; atomic.LoadInt64(&d.left) > max(until, 0) &&
			!t.Failed(); {
			<-d.done
		}
	}
	ended.Wait()
	return atomic.LoadInt64(&d.opened), atomic.LoadInt64(&d.strays)
}

type drains struct {
	*stand
	drained              atomic.Pointer[string]
	left, opened, strays int64
	done                 chan struct{} // has an element when a connection is done
}

// call opens connections one after the other. Two callers are outside, two on the host; two use
// each family.
func (d *drains) call(n int) error {
	to := netip.AddrPortFrom(vip[n%2], 80)
	one := func() error {
		before := d.drained.Load()
		c, err := dialTo(to)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil { // its port is free again at once
			return err
		}
		who, err := c.ask("who")
		if before == nil || err != nil || d.drained.Load() != before {
			return err
		}
		atomic.AddInt64(&d.opened, 1)
		if who == *before {
			atomic.AddInt64(&d.strays, 1)
		}
		return nil
	}
	all := func() error {
		for {
			err := one()
			left := atomic.AddInt64(&d.left, -1)
			select {
			case d.done <- struct{}{}:
			default:
			}
			if err != nil || left <= 0 {
				return err
			}
		}
	}
	if n < 2 {
		return d.outside.Inside(all)
	}
	return all()
}
