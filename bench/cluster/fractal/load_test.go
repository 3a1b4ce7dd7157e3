//go:build bench

package fractal

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// callers send the requests of a load, as httperf does: an open loop, one connection per request.
const callers = 64

// load is an open loop of requests from the lab's client to a service.
type load struct {
	dial    func(address string) (net.Conn, error)
	address string
	bytes   func(*rand.Rand) int              // of an answer; nil: the page / of any size
	rate    func(since time.Duration) float64 // requests per second
	lasts   time.Duration
}

// reply is the time from when a request was due to the end of its answer.
type reply struct{ due, took time.Duration }

// run applies the load and returns the replies by the time that they were due.
func (l load) run(t *testing.T) []reply {
	t.Helper()
	turns := make(chan time.Duration, 1<<16) // more than a load has: a late answer delays no request
	var mu sync.Mutex
	var out []reply
	var all sync.WaitGroup
	begin := time.Now()
	for n := range callers {
		dice := rand.New(rand.NewPCG(uint64(n), 7))
		all.Go(func() {
			for due := range turns {
				err := l.ask(dice)
				mu.Lock()
				out = append(out, reply{due, time.Since(begin) - due})
				mu.Unlock()
				if err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
			}
		})
	}
	for due := time.Duration(0); due < l.lasts; {
		<-time.After(time.Until(begin.Add(due)))
		turns <- due
		due += time.Duration(float64(time.Second) / l.rate(due))
	}
	close(turns)
	all.Wait()
	slices.SortFunc(out, func(a, b reply) int { return int(a.due - b.due) })
	return out
}

// patience bounds a request.
const patience = 10 * time.Second

func (l load) ask(dice *rand.Rand) error {
	path, bytes := "/", -1
	if l.bytes != nil {
		bytes = l.bytes(dice)
		path = fmt.Sprintf("/size?bytes=%d", bytes)
	}
	c, err := l.dial(l.address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: web.pando\r\n"+
		"Connection: close\r\n\r\n", path); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && bytes >= 0 && n != int64(bytes) {
		err = fmt.Errorf("%d bytes, want %d", n, bytes)
	}
	return err
}

// always returns a rate that does not change.
func always(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// pages draws the size of a page: 16 to 220 KB, most of them small. The paper has the pages of the
// HTTP Archive, which are larger; the processors of this machine serve the client too.
func pages(d *rand.Rand) int {
	return min(220<<10, int(16<<10*math.Exp(d.ExpFloat64()*0.8)))
}

// mean returns the mean time of replies in milliseconds.
func mean(all []reply) (m float64) {
	for _, r := range all {
		m += r.took.Seconds() * 1000 / float64(len(all))
	}
	return m
}

// quantile returns a quantile of the times of replies in milliseconds.
func quantile(all []reply, share float64) float64 {
	took := make([]float64, len(all))
	for n, r := range all {
		took[n] = r.took.Seconds() * 1000
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(float64(len(took))*share))]
}

// processors returns the processor time of each instance of a service so far, in seconds.
func processors(t *testing.T, p *labtest.Pando, s *labtest.Service) map[string]float64 {
	t.Helper()
	all, err := p.API(p.Host()).Stats(t.Context(), pando.DefaultService(pando.ServiceName(s.Name)))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, u := range all {
		out[string(u.Instance)] = u.CPUSeconds
	}
	return out
}

// busy returns the mean share of a processor that an instance used while do ran, in per cent, and
// that of the busiest.
func busy(
	t *testing.T, p *labtest.Pando, s *labtest.Service, do func(),
) (each, most float64) {
	t.Helper()
	before, begin := processors(t, p, s), time.Now()
	do()
	lasted := time.Since(begin).Seconds()
	after := processors(t, p, s)
	for i, spent := range after {
		share := (spent - before[i]) / lasted * 100
		each += share / float64(len(after))
		most = max(most, share)
	}
	return each, most
}

// site deploys the website of the examples, which asks for a copy at the rate high.
func site(t *testing.T, p *labtest.Pando, most int) *labtest.Service {
	t.Helper()
	program := filepath.Join(p.Dir, "website")
	if _, err := os.Stat(program); err != nil {
		build := exec.Command("go", "build", "-trimpath", "-o", program, ".")
		build.Dir, build.Env = "../../../examples/website", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the website: %v\n%s", err, out)
		}
	}
	return p.Deploy(fmt.Sprintf("name: website\ncommand: [./website]\n"+
		"environment: {WEBSITE_HIGH: %d, WEBSITE_LOW: 20}\nports: [\"80:8080\"]\n"+
		"scale: {min: 1, max: %d}\nresources: {cpus: %g}\n", high, most, siteLimit))
}
