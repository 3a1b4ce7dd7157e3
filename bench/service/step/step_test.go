//go:build bench

// Package step measures the time from a step of load until a copy serves its first request. The
// website measures its load over 100 ms and asks, the copy starts, and the kernel steers to it.
package step

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

const (
	rounds   = 15
	before   = 100  // requests per second
	after    = 1500 // requests per second: 2.5 times the load at which one instance asks
	calls    = 32   // goroutines that send requests
	patience = 10 * time.Second
)

func TestStep(t *testing.T) {
	p := labtest.Up(t)
	site := filepath.Join(p.Dir, "website")
	build := exec.Command("go", "build", "-trimpath", "-o", site, ".")
	build.Dir, build.Env = "../../../examples/website", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the website: %v\n%s", err, out)
	}
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := csv.NewWriter(f)
	defer out.Flush()
	write := func(cells ...string) {
		if err := out.Write(cells); err != nil {
			t.Fatal(err)
		}
	}
	write("round", "series", "value")
	var all []float64
	for round := range rounds {
		s := p.Deploy("name: website\ncommand: [./website]\nenvironment: {WEBSITE_HIGH: 600, " +
			"WEBSITE_LOW: 150}\nports: [\"80:8080\"]\nscale: {min: 1, max: 8}\n")
		served, rotation := measure(t, p, s)
		write(fmt.Sprint(round), "step → first answer of a copy", fmt.Sprintf("%.2f", served))
		write(fmt.Sprint(round), "of that, ask → in rotation", fmt.Sprintf("%.2f", rotation))
		all = append(all, served)
		p.Pando("rm", "website", "--wait", "--purge")
	}
	slices.Sort(all)
	p50, worst := all[len(all)/2], all[len(all)-1]
	out.Flush()
	verdict := "held"
	if p50 > 250 {
		verdict = "missed"
	}
	publish(t, fmt.Sprintf("load step → added capacity serving (%d rounds) | ≤ 250 ms p50 | | %.0f "+
		"ms p50, %.0f ms at worst | %s", rounds, p50, worst, verdict))
}

// measure offers a step of load and returns two times in milliseconds. served is the time from the
// step to the first answer of a copy. rotation is the time from the first copy's ask until the copy
// was in rotation.
func measure(t *testing.T, p *labtest.Pando, s *labtest.Service) (served, rotation float64) {
	first := string(s.Status().Instances[0].ID)
	found := make(chan time.Time, calls)
	end := make(chan struct{})
	var calling sync.WaitGroup
	step := time.Now().Add(time.Second)
	for n := range calls {
		c := caller{
			t: t, dial: p.Dialer(p.Lab.Client.Name), address: s.VIP + ":80", first: first, found: found,
		}
		calling.Go(func() { c.call(n, step, end) })
	}
	var at time.Time
	select {
	case at = <-found:
	case <-time.After(patience):
		t.Error("no copy answered")
	}
	close(end)
	calling.Wait()
	p.Await("the copy's record to be in rotation", func() (string, bool) {
		all, err := p.API(p.Host()).Why(t.Context(), pando.DefaultService("website"), 0)
		if err != nil {
			return err.Error(), false
		}
		for _, b := range all {
			i := b.Intent
			if i != nil && i.By.Kind == pando.AskerInstance && i.State == pando.IntentInRotation {
				rotation = i.History[len(i.History)-1].At.Sub(i.Asked()).Seconds() * 1e3
				return "", true
			}
		}
		return "no copy in rotation", false
	})
	return at.Sub(step).Seconds() * 1e3, rotation
}

// caller sends requests from the lab's client, each on a new connection.
type caller struct {
	t       *testing.T
	dial    func(address string) (net.Conn, error)
	address string
	first   string
	found   chan time.Time
}

// call sends its share of the load: the low rate until the step, the high rate after it.
func (c caller) call(n int, step time.Time, end <-chan struct{}) {
	for due := time.Now().Add(time.Duration(n) * time.Second / before); ; {
		select {
		case <-end:
			return
		case <-time.After(time.Until(due)):
		}
		name, err := c.ask()
		if err != nil {
			c.t.Errorf("a request failed: %v", err)
			return
		}
		if name != c.first {
			c.found <- time.Now()
			<-end
			return
		}
		rate := before
		if !time.Now().Before(step) {
			rate = after
		}
		due = due.Add(time.Duration(calls) * time.Second / time.Duration(rate))
		if due.After(step) && rate == before {
			due = step.Add(time.Duration(n) * time.Second / after)
		}
	}
}

// ask returns the name of the instance that answered.
func (c caller) ask() (string, error) {
	conn, err := c.dial(c.address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: website\r\nConnection: close\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(strings.TrimPrefix(string(body), "Hello from ")), err
}

func publish(t *testing.T, row string) {
	t.Helper()
	out, err := exec.Command("../../publish", "service/step", "--title", "From a step of load to "+
		"the first answer of a copy", "--unit", "ms", "--row", row).CombinedOutput()
	if err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
