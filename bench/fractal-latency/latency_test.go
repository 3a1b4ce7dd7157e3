//go:build bench

// Package latency measures what it costs a service, in latency at a fixed rate, that it could be scaled: a service of Pando
// through its VIP, beside the same program outside of Pando, in the same kind of sandbox on the bare host, and past the steering. One request
// goes each way in turn, so that whatever else happens on the machine happens to all.
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
	each   = 500                  // requests a round, of every kind
	every  = 1 * time.Millisecond // between two requests of any kind
)

// within runs f on a thread in the network of a process.
func within(t *testing.T, pid int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
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

func TestLatency(t *testing.T) {
	p := labtest.Up(t)
	echo := labtest.Build(t, "./lab/labtest/echo")
	s := p.Deploy("name: web\ncommand: [./echo]\nports: [\"80:8080\"]\nscale: {min: 1, max: 8}\nhealth: {ready: tcp 8080}\n")
	p.Start(p.Host(), echo)
	boxed := netip.MustParseAddr("10.130.0.2")
	inBox(t, p, echo, boxed)
	host := p.Lab.Hosts[0]
	straight := s.Status().Instances[0].Endpoint
	for _, ip := range []string{boxed.String(), strings.TrimSuffix(straight, ":8080")} {
		p.Must(labtest.Client, "ip", "route", "add", ip, "via", host.IPv4)
	}
	to := []struct{ name, address string }{
		{"through the VIP", s.VIP + ":80"}, {"outside, in a sandbox", boxed.String() + ":8080"}, {"outside, on the host", host.IPv4 + ":8080"},
		{"straight to the instance", straight},
	}
	var ways [4]*conn
	for n, way := range to {
		p.Await(way.name+" answers", func() (string, bool) {
			var err error
			within(t, p.Lab.Client.Pid, func() error { ways[n], err = dial(way.address); return nil })
			if err != nil {
				return err.Error(), false
			}
			return "", true
		})
	}
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := csv.NewWriter(f)
	_ = out.Write([]string{"round", "series", "value"})
	var medians [4][]float64
	for round := range rounds {
		for n, m := range measure(t, ways) {
			medians[n] = append(medians[n], m)
			_ = out.Write([]string{fmt.Sprint(round), to[n].name, fmt.Sprintf("%.1f", m)})
		}
	}
	out.Flush()
	sandbox, bare := ratio(medians[0], medians[1]), ratio(medians[0], medians[2])
	verdict := map[bool]string{true: "held", false: "missed"}[sandbox <= 1.02]
	args := []string{"fractal-latency", "--title", "Latency of a service that may scale but does not", "--unit", "µs",
		"--row", fmt.Sprintf("p50 at 250 requests per second through the VIP, against the same program outside of Pando in the same kind of sandbox | ≤ 1.02 × | no overhead | %.3f × (%.0f µs against %.0f µs; medians of %d rounds) | %s",
			sandbox, median(medians[0]), median(medians[1]), rounds, verdict),
		"--row", fmt.Sprintf("the same against the instance's own address, past the steering | | | %.3f × (%.0f µs) | stated", ratio(medians[0], medians[3]), median(medians[3])),
		"--row", fmt.Sprintf("the same against the program on the bare host, which has no sandbox's link to cross | | | %.2f × (%.0f µs) | stated", bare, median(medians[2]))}
	if said, err := exec.Command("../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Logf("%v", args[7:])
}

// inBox starts the program in a namespace behind a link of the host, as a sandbox is, but without Pando.
func inBox(t *testing.T, p *labtest.Pando, program string, own netip.Addr) {
	t.Helper()
	var b *lab.Box
	within(t, p.Lab.Hosts[0].Pid, func() (err error) {
		b, err = lab.NewBox("peer", own, netip.Addr{})
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

// measure sends one request each way in turn and returns the median of each, in microseconds.
func measure(t *testing.T, ways [4]*conn) (out [4]float64) {
	t.Helper()
	var took [4][]float64
	due := time.NewTicker(every)
	defer due.Stop()
	for range each {
		for _, n := range rand.Perm(len(ways)) { // nobody always comes after the same other
			<-due.C
			d, err := ways[n].ask()
			if err != nil {
				t.Fatal(err)
			}
			took[n] = append(took[n], float64(d)/1000)
		}
	}
	for n := range took {
		out[n] = median(took[n])
	}
	return out
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// ratio is the median of the ratios round by round.
func ratio(a, b []float64) float64 {
	var v []float64
	for n := range a {
		v = append(v, a[n]/b[n])
	}
	return median(v)
}
