//go:build bench

package hosts

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"pando.run/pando/lab/labtest"
)

// lasts is the duration of one measurement.
const lasts = 1500 * time.Millisecond

type dialer func(address string) (net.Conn, error)

// visitors are open connections. Each makes one request after the other.
type visitors struct {
	t     *testing.T
	bytes int
	conns []net.Conn
	reads []*bufio.Reader
}

func visit(t *testing.T, dial dialer, address string, bytes, open int) *visitors {
	t.Helper()
	v := &visitors{t: t, bytes: bytes}
	for range open {
		c, err := dial(address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		v.conns, v.reads = append(v.conns, c), append(v.reads, bufio.NewReader(c))
	}
	return v
}

// measure returns the requests per second and the median of their times in microseconds.
func (v *visitors) measure() (rate, p50 float64) {
	var visiting sync.WaitGroup
	took := make([][]float64, len(v.conns))
	begin := time.Now()
	until := begin.Add(lasts)
	for n := range v.conns {
		visiting.Go(func() {
			for time.Now().Before(until) {
				begin := time.Now()
				if err := ask(v.conns[n], v.reads[n], v.bytes); err != nil {
					v.t.Error(err)
					return
				}
				took[n] = append(took[n], float64(time.Since(begin).Nanoseconds())/1000)
			}
		})
	}
	visiting.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	if len(all) == 0 {
		v.t.Fatal("no request was answered")
	}
	return float64(len(all)) / time.Since(begin).Seconds(), all[len(all)/2]
}

func ask(c net.Conn, r *bufio.Reader, bytes int) error {
	if err := c.SetDeadline(time.Now().Add(labtest.Patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "GET /size?bytes=%d HTTP/1.1\r\nHost: web.pando\r\n\r\n",
		bytes); err != nil {
		return err
	}
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && n != int64(bytes) {
		err = fmt.Errorf("%d bytes, want %d", n, bytes)
	}
	return err
}

// tries opens connections to an address until no attempt has failed for a while, and returns when
// the last failed attempt began. A failed one is refused, reset or silent.
func tries(t *testing.T, dial func(string, time.Duration) (net.Conn, error), address string,
	quiet time.Duration) (last time.Time) {
	const every, silence = 2 * time.Millisecond, 250 * time.Millisecond
	var mu sync.Mutex
	var trying sync.WaitGroup
	last = time.Now()
	due := time.NewTicker(every)
	defer due.Stop()
	deadline := time.Now().Add(labtest.Patience)
	for {
		begin := <-due.C
		mu.Lock()
		over := begin.Sub(last) > quiet
		mu.Unlock()
		if over {
			break
		}
		if begin.After(deadline) {
			t.Errorf("attempts still fail after %s", labtest.Patience)
			break
		}
		trying.Go(func() {
			c, err := dial(address, silence)
			if err == nil {
				defer c.Close()
				_ = c.SetDeadline(begin.Add(2 * silence))
				err = ask(c, bufio.NewReader(c), 1)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				if begin.After(last) {
					last = begin
				}
			}
		})
	}
	trying.Wait()
	return last
}
