//go:build bench

package hosts

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// deadInstances kills the programs of instances, and measures until no new connection fails.
func (s table) deadInstances(t *testing.T) {
	const each = 4
	p := up(t, 3)
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 6, max: 6}"))
	dial := within(p)
	for round := range rounds {
		for range each {
			st := web.AwaitInstances(6)
			victim := st.Instances[(round*each)%len(st.Instances)].ID
			program := programOf(t, victim)
			begin := time.Now()
			if err := unix.Kill(program, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
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
	s.row("a dead instance out of rotation everywhere, p99, from the kill until the last failed "+
		"connection began", "≤ 20 ms", fmt.Sprintf("%.0f ms", worst), worst <= 20)
}

// programOf returns the process of an instance of labtest.Echo.
func programOf(t *testing.T, i pando.InstanceID) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all { // a process that ends meanwhile has no files
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if string(name) == "echo\n" &&
			slices.Contains(strings.Split(string(env), "\x00"), "PANDO_INSTANCE="+string(i)) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	t.Fatalf("no program of %s runs", i)
	return 0
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
