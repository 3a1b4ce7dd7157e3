//go:build bench

package hosts

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// deadInstances ends instances as crashes would, and measures until no new connection fails.
func (s table) deadInstances(t *testing.T) {
	const each = 4
	p := up(t, 3)
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 6, max: 6}"))
	dial := within(p)
	for round := range rounds {
		for range each {
			st := web.AwaitInstances(6)
			victim := st.Instances[(round*each)%len(st.Instances)].ID
			begin := time.Now()
			go web.Kill(victim)
			last := tries(t, dial, web.VIP+":80", time.Second)
			s.Note(round, "dead instance ms", max(0, last.Sub(begin).Seconds()*1000))
			web.Await("the end of "+string(victim), func(st pando.ServiceStatus) bool {
				for _, i := range st.Instances {
					if i.ID == victim && i.Phase.TakesFlows() {
						return false
					}
				}
				return true
			})
		}
	}
	worst := s.Quantile("dead instance ms", .99)
	s.row("a dead instance out of rotation everywhere, p99, until the last failed connection began "+
		"(with the time of the kill itself)", "≤ 20 ms", fmt.Sprintf("%.0f ms", worst), worst <= 20)
}

// deadHosts cuts the power of a host, and measures until no new connection fails.
func (s table) deadHosts(t *testing.T) {
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			p := up(t, 3)
			web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 6, max: 6}"))
			web.AwaitInstances(6)
			dial, last := within(p), p.Hosts[2]
			begin := time.Now()
			for _, other := range []string{p.Hosts[0], p.Hosts[1], labtest.Client} {
				if err := p.Lab.Cut(last, other); err != nil {
					t.Fatal(err)
				}
			}
			p.KillHost(last)
			end := tries(t, dial, web.VIP+":80", 3*time.Second)
			s.Note(round, "dead host ms", end.Sub(begin).Seconds()*1000)
		})
	}
	if len(s.Values("dead host ms")) == 0 {
		return
	}
	worst := s.Quantile("dead host ms", .99)
	s.row("a dead host out of rotation everywhere, worst of 5", "≤ 700 ms",
		fmt.Sprintf("%.0f ms", worst), worst <= 700)
}

// dialersMax is how many connections are dialled at once.
const dialersMax = 128

// within returns a dialer of the client that gives up after a time. A silent host holds up only the
// connections to it.
func within(p *labtest.Pando) func(string, time.Duration) (net.Conn, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	type call struct {
		address string
		most    time.Duration
		answer  chan answer
	}
	calls := make(chan call)
	for range dialersMax {
		go func() {
			// Never unlocked: the thread is in another namespace and ends with this goroutine.
			runtime.LockOSThread()
			ns, err := netns.GetFromPid(p.Lab.Client.Pid)
			if err == nil {
				err = netns.Set(ns)
				ns.Close()
			}
			for {
				select {
				case c := <-calls:
					a := answer{err: err}
					if err == nil {
						a.conn, a.err = net.DialTimeout("tcp", c.address, c.most)
					}
					c.answer <- a
				case <-p.Context().Done():
					return
				}
			}
		}()
	}
	return func(address string, most time.Duration) (net.Conn, error) {
		c := call{address, most, make(chan answer, 1)}
		select {
		case calls <- c:
		case <-p.Context().Done():
			return nil, p.Context().Err()
		}
		a := <-c.answer
		return a.conn, a.err
	}
}
