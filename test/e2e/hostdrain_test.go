package e2e

import (
	"bufio"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// callers make requests to a service over new connections until they are stopped.
type callers struct {
	done   chan struct{}
	wg     sync.WaitGroup
	made   atomic.Int64
	failed atomic.Int64
	first  atomic.Pointer[string] // error
}

// calls starts a caller on each of some members of the lab.
func calls(p *labtest.Pando, s *labtest.Service, from ...string) *callers {
	p.Helper()
	c := &callers{done: make(chan struct{})}
	for _, f := range from {
		dial := p.Dialer(f)
		c.wg.Go(func() {
			for {
				select {
				case <-c.done:
					return
				default:
				}
				conn, err := dial(s.VIP + ":80")
				if err == nil {
					g := guest{conn: conn, in: bufio.NewReader(conn)}
					_, err = g.ask()
					conn.Close()
				}
				if c.made.Add(1); err != nil {
					text := fmt.Sprintf("from %s: %v", f, err)
					c.first.CompareAndSwap(nil, &text)
					c.failed.Add(1)
				}
			}
		})
	}
	p.Cleanup(c.stop)
	return c
}

func (c *callers) stop() {
	select {
	case <-c.done:
	default:
		close(c.done)
	}
	c.wg.Wait()
}

// after waits until n more requests have been made.
func (c *callers) after(p *labtest.Pando, n int64) {
	p.Helper()
	until := c.made.Load() + n
	p.Await("more requests", func() (string, bool) {
		now := c.made.Load()
		return fmt.Sprint(now), now >= until
	})
}

// TestAHostIsDrainedWithoutAFailedRequest drains the home of services whose clients are on other
// hosts. No request fails and no open connection breaks. What cannot leave is named, and serves.
func TestAHostIsDrainedWithoutAFailedRequest(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	web := p.Deploy(labtest.Echo("web", "scale: {min: 1, max: 4}"))
	home := string(web.Status().Home)
	bound := p.Deploy(labtest.Echo("bound", "place: {only: \"host="+home+"\"}"))
	all := p.Deploy(labtest.Echo("all", "scale: {min: 3, max: 6}", "place: {spread: host}"))
	var away []string
	for _, h := range p.Hosts {
		if h != home {
			away = append(away, h)
		}
	}
	open := visits(p, web, away...)
	toWeb, toAll := calls(p, web, away[0], labtest.Client), calls(p, all, away[0])
	toWeb.after(p, 20)
	toAll.after(p, 20)

	p.Pando("hosts", "drain", home, "--for", "1h", "--wait=false")
	moved := web.Await("web at another home", func(st pando.ServiceStatus) bool {
		on := seats(st)
		return string(st.Home) != home && on[string(st.Home)] == 1 && on[home] == 0
	})
	all.Await("all on the other hosts", func(st pando.ServiceStatus) bool {
		on := seats(st)
		return on[home] == 0 && st.InRotation == 3
	})
	unbroken(t, "after the drain", open)
	for _, v := range open {
		v.conn.Close()
	}
	text := p.PandoFails(7, "hosts", "drain", home)
	has(p, text, "bound", "stays: no other host takes its instances")
	has(p, p.Pando("hosts"), home+" is drained by", "these stay: bound")
	has(p, p.Pando("why", "bound"), "it stays on "+home, "which is drained since")
	has(p, p.Pando("why", "bound", "--pending"), "pando hosts undrain "+home)
	if got := bound.Get(labtest.Client, "/"); got == "" {
		t.Error("what stays does not serve")
	}
	p.Pando("rm", "bound", "--wait")
	has(p, p.Pando("hosts", "drain", home), "no instance is left")
	has(p, p.Pando("hosts", "undrain", home), "takes new instances", "pando rebalance")
	if st := web.Status(); st.Home != moved.Home {
		t.Errorf("the end of the drain moved web back to %s", st.Home)
	}
	has(p, p.Pando("rebalance", "--dry-run"), "1 instance of", "to "+home)
	has(p, p.Pando("rebalance"), "moved")
	if on := seats(all.Status()); on[home] != 1 && string(web.Status().Home) != home {
		t.Errorf("nothing is on %s after a rebalance: %v", home, on)
	}
	has(p, p.Pando("rebalance"), "nothing moves")
	toWeb.after(p, 20)
	toAll.after(p, 20)
	for _, c := range []*callers{toWeb, toAll} {
		if c.stop(); c.failed.Load() > 0 {
			t.Errorf("%d of %d requests failed, the first %s", c.failed.Load(), c.made.Load(), *c.first.Load())
		}
		t.Logf("%d requests, %d failed", c.made.Load(), c.failed.Load())
	}
}
