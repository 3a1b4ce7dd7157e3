//go:build bench

// Package latency measures the latency that a scalable service pays at a fixed rate. It compares a
// service of Pando through its VIP with three peers. The same program is called straight at the
// instance, in a similar sandbox without Pando, and on the bare host. Requests take turns, so that
// other work of the machine affects all of them.
package latency

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"pando.run/pando/lab"
	"pando.run/pando/lab/labtest"
)

const (
	rounds = 9
	pairs  = 5
	each   = 80                   // requests per round to every process
	every  = 2 * time.Millisecond // pause between two requests
)

// within runs f on a thread in the network namespace of a process.
func within(t *testing.T, pid int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with this goroutine
		ns, err := netns.GetFromPid(pid)
		if err == nil {
			err = netns.Set(ns)
			ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// kinds lists the ways to the same program. Each way has several processes, because a process can
// be lucky or unlucky for its whole life.
var kinds = []string{"through the VIP", "straight to the instance", "outside, in a sandbox",
	"outside, on the host"}

func TestLatency(t *testing.T) {
	p := labtest.Up(t)
	echo := labtest.Build(t, "./lab/labtest/echo")
	host := p.Lab.Hosts[0]
	p.Start(p.Host(), echo)
	ways := map[string][]*conn{}
	join := func(kind, address string) {
		p.Await(kind+" answers", func() (string, bool) {
			var c *conn
			var err error
			within(t, p.Lab.Client.Pid, func() error { c, err = dial(address); return nil })
			if err != nil {
				return err.Error(), false
			}
			ways[kind] = append(ways[kind], c)
			return "", true
		})
	}
	for n := range pairs {
		s := p.Deploy(fmt.Sprintf("name: web%d\ncommand: [./echo]\nports: [\"80:8080\"]\n"+
			"scale: {min: 1, max: 8}\nhealth: {ready: tcp 8080}\n", n))
		own := netip.AddrFrom4([4]byte{10, 130, 0, byte(n + 2)})
		inBox(t, p, fmt.Sprintf("peer%d", n), echo, own)
		straight := s.Status().Instances[0].Endpoint
		for _, ip := range []string{own.String(), strings.TrimSuffix(straight, ":8080")} {
			p.Must(labtest.Client, "ip", "route", "add", ip, "via", host.IPv4)
		}
		join(kinds[0], s.VIP+":80")
		join(kinds[1], straight)
		join(kinds[2], own.String()+":8080")
		join(kinds[3], host.IPv4+":8080")
	}
	report(t, run(t, ways))
}

// run measures all rounds and returns the medians by kind.
func run(t *testing.T, ways map[string][]*conn) map[string][]float64 {
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := csv.NewWriter(f)
	defer out.Flush()
	_ = out.Write([]string{"round", "series", "value"})
	all := map[string][]float64{}
	for round := range rounds {
		took := measure(t, ways)
		for _, kind := range kinds {
			all[kind] = append(all[kind], median(took[kind]))
			_ = out.Write([]string{fmt.Sprint(round), kind, fmt.Sprintf("%.1f", median(took[kind]))})
		}
	}
	return all
}

func report(t *testing.T, all map[string][]float64) {
	against := func(kind string) (float64, string) {
		r := ratio(all[kinds[0]], all[kind])
		return r, fmt.Sprintf("%.3f × (%.0f µs against %.0f µs; medians of %d rounds)",
			r, median(all[kinds[0]]), median(all[kind]), rounds)
	}
	r, sandbox := against(kinds[2])
	_, straight := against(kinds[1])
	_, bare := against(kinds[3])
	verdict := map[bool]string{true: "held", false: "missed"}[r <= 1.02]
	args := []string{"service/latency", "--title", "Latency of a service that may scale but does not",
		"--unit", "µs",
		"--row",
		fmt.Sprintf("p50 at 500 requests per second through the VIP, against the same program outside "+
			"of Pando behind the same kind of link, without a cgroup of its own (%d of each) | ≤ 1.02 × | "+
			"no overhead | %s | %s", pairs, sandbox+load(), verdict),
		"--row", fmt.Sprintf(
			"the same against the instances' own addresses, past the steering | | | %s | stated", straight),
		"--row", fmt.Sprintf("the same against the program on the bare host, which has no sandbox's "+
			"link to cross | | | %s | stated", bare)}
	if said, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Logf("%s\n%s\n%s", sandbox, straight, bare)
}

// load returns the load of the machine. A sandbox's cgroup competes for a processor as a group.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	one, _, _ := strings.Cut(string(b), " ")
	return "; load " + one + " on " + fmt.Sprint(runtime.NumCPU()) + " cores"
}

// inBox starts the program in a namespace behind a link of the host. That is like a sandbox, but
// without Pando.
func inBox(t *testing.T, p *labtest.Pando, name, program string, own netip.Addr) {
	t.Helper()
	var b *lab.Box
	within(t, p.Lab.Hosts[0].Pid, func() (err error) {
		b, err = lab.NewBox(name, own, netip.Addr{})
		return err
	})
	cmd := exec.Command(program)
	cmd.Dir = filepath.Dir(program)
	if err := b.Inside(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		within(t, p.Lab.Hosts[0].Pid, b.Close)
	})
}

type conn struct {
	net.Conn
	in *bufio.Reader
}

func dial(address string) (*conn, error) {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReader(c)}, nil
}

func (c *conn) ask() (time.Duration, error) {
	begin := time.Now()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		return 0, err
	}
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return time.Since(begin), err
}

// measure sends requests to all processes in turn, in a new random order each time. It returns the
// durations in microseconds.
func measure(t *testing.T, ways map[string][]*conn) map[string][]float64 {
	t.Helper()
	took := map[string][]float64{}
	due := time.NewTicker(every)
	defer due.Stop()
	for range each {
		// A random order, so that no request always follows the same other request.
		for _, n := range rand.Perm(len(kinds) * pairs) {
			<-due.C
			kind := kinds[n/pairs]
			d, err := ways[kind][n%pairs].ask()
			if err != nil {
				t.Fatal(err)
			}
			took[kind] = append(took[kind], float64(d)/1000)
		}
	}
	return took
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// ratio returns the median of the ratios round by round.
func ratio(a, b []float64) float64 {
	var v []float64
	for n := range a {
		v = append(v, a[n]/b[n])
	}
	return median(v)
}
