//go:build bench

// Package kept measures how soon clients that keep their connections reach new instances. The website
// scales itself at a step of load and lets a share of its connections go (Self.Spread). New connections
// go to the instance with fewer of two, as the guide advises for connections that last.
package kept

import (
	"context"
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
	rounds   = 5
	before   = 80   // requests per second
	after    = 1000 // requests per second
	size     = 8    // instances
	http1    = 64   // kept connections by HTTP/1.1
	http2    = 8    // kept connections by HTTP/2
	requests = 10_080
	window   = time.Second
	goal     = 1.25
)

// answer is one request: its end and the instance that answered, or "" for a failure.
type answer struct {
	at time.Time
	by string
}

func TestKept(t *testing.T) {
	p := labtest.Up(t)
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(p.Dir, "website"), ".")
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
	write := func(round int, series string, value float64) {
		if err := out.Write([]string{fmt.Sprint(round), series, fmt.Sprintf("%.2f", value)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Write([]string{"round", "series", "value"}); err != nil {
		t.Fatal(err)
	}
	var ratios, times []float64
	all, failed := 0, 0
	for round := range rounds {
		s := p.Deploy(fmt.Sprintf("name: website\ncommand: [./website]\nenvironment: {WEBSITE_HIGH: 120, "+
			"WEBSITE_LOW: 10}\nports: [\"80:8080\"]\nscale: {min: 1, max: %d}\nbalance: {by: least-flows}\n",
			size))
		answers := load(p, s)
		full := lastInRotation(p)
		spread := func(from time.Time) float64 { return ratio(answers, from) }
		even := full
		for spread(even) > goal && even.Before(full.Add(20*time.Second)) {
			even = even.Add(window / 10)
		}
		at2 := spread(full.Add(2 * time.Second))
		write(round, "seconds until even", even.Sub(full).Seconds())
		write(round, "busiest over mean after 2 s", at2)
		ratios, times = append(ratios, at2), append(times, even.Sub(full).Seconds())
		for _, a := range answers {
			if all++; a.by == "" {
				failed++
			}
		}
		p.Pando("rm", "website", "--now", "--wait", "--purge")
	}
	slices.Sort(ratios)
	slices.Sort(times)
	out.Flush()
	verdict := "missed"
	if ratios[rounds/2] <= goal && failed == 0 {
		verdict = "held"
	}
	publish(t, fmt.Sprintf("requests of the busiest of %d instances over their mean, 2 s after the last "+
		"one takes flows; %d kept connections by HTTP/1.1 and %d by HTTP/2 | ≤ 1.25, 0 failed | | "+
		"%.2f (median of %d rounds; %.2f at worst; even after %.1f s), %d of %d failed | %s", size, http1,
		http2, ratios[rounds/2], rounds, ratios[rounds-1], times[rounds/2], failed, all, verdict))
}

// load sends requests by kept connections: at a low rate for a second, and then at a high one.
func load(p *labtest.Pando, s *labtest.Service) (all []answer) {
	var mu sync.Mutex
	var sending sync.WaitGroup
	step := time.Now().Add(time.Second)
	for n := range http1 + http2 {
		c := client(p, n >= http1)
		sending.Go(func() {
			defer c.CloseIdleConnections()
			due := time.Now().Add(time.Duration(n) * time.Second / before)
			for range requests / (http1 + http2) {
				<-time.After(time.Until(due))
				a := answer{by: ask(c, s.VIP)}
				a.at = time.Now()
				mu.Lock()
				all = append(all, a)
				mu.Unlock()
				rate := before
				if due.After(step) {
					rate = after
				}
				if due = due.Add(time.Duration(http1+http2) * time.Second / time.Duration(rate)); due.Before(a.at) {
					due = a.at // a late client sends no burst
				}
			}
		})
	}
	sending.Wait()
	return all
}

// client returns a client on the machine outside with one kept connection.
func client(p *labtest.Pando, second bool) *http.Client {
	dial := p.Dialer(p.Lab.Client.Name)
	transport := &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) { return dial(address) }}
	if second {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// ask returns the name of the instance that answers, or "".
func ask(c *http.Client, vip string) string {
	r, err := c.Get("http://" + vip + "/")
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return ""
	}
	return strings.TrimSpace(strings.TrimPrefix(string(body), "Hello from "))
}

// lastInRotation returns when the last instance took flows.
func lastInRotation(p *labtest.Pando) (last time.Time) {
	p.Helper()
	all, err := p.API(p.Host()).Why(p.Context(), pando.DefaultService("website"), 0)
	if err != nil {
		p.Fatal(err)
	}
	n := 0
	for _, b := range all {
		if i := b.Intent; i != nil && i.State == pando.IntentInRotation && len(i.History) > 0 {
			n++
			if at := i.History[len(i.History)-1].At; at.After(last) {
				last = at
			}
		}
	}
	if n < 2 {
		p.Fatalf("the website grew by %d instances", n)
	}
	return last
}

// ratio returns the requests of the busiest instance over the mean, in a window.
func ratio(all []answer, from time.Time) float64 {
	of := map[string]int{}
	most, sum := 0, 0
	for _, a := range all {
		if a.by != "" && !a.at.Before(from) && a.at.Before(from.Add(window)) {
			of[a.by]++
			most, sum = max(most, of[a.by]), sum+1
		}
	}
	if sum == 0 {
		return size
	}
	return float64(most) * size / float64(sum)
}

func publish(t *testing.T, row string) {
	t.Helper()
	out, err := exec.Command("../../publish", "service/kept", "--title", "Kept connections after a step "+
		"of load", "--unit", "s", "--row", row).CombinedOutput()
	if err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
