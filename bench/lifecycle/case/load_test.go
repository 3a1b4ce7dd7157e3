//go:build bench

package devops

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando/lab/labtest"
)

// load is a number of clients that each make one request after the other. One of ten is an order,
// nine ask for one.
type load struct {
	answered atomic.Int64
	mu       sync.Mutex
	failures []string
	stop     chan struct{}
	clients  sync.WaitGroup
}

// visit starts clients of a service on the lab's client.
func visit(c scene, url string, clients int) *load {
	dial := c.Dialer(labtest.Client)
	l := &load{stop: make(chan struct{})}
	each := &http.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			return dial(address)
		}}
	client := &http.Client{Transport: each, Timeout: 20 * time.Second}
	for n := range clients {
		l.clients.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-l.stop:
					return
				default:
				}
				order := fmt.Sprintf("%s/orders/%d-%d-%d", url, time.Now().UnixNano(), n, k)
				if k == 0 || k%10 == 0 {
					l.ask(client, http.MethodPut, order)
				} else {
					l.ask(client, http.MethodGet, url+"/")
				}
			}
		})
	}
	return l
}

// ask makes a request and counts it.
func (l *load) ask(client *http.Client, method, url string) {
	r, err := http.NewRequest(method, url, strings.NewReader("birch"))
	if err == nil {
		var a *http.Response
		if a, err = client.Do(r); err == nil {
			_, err = io.Copy(io.Discard, a.Body)
			a.Body.Close()
			if err == nil && a.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %s", a.Status)
			}
		}
	}
	if err != nil {
		l.mu.Lock()
		l.failures = append(l.failures, fmt.Sprintf("%s %s: %v", method, url, err))
		l.mu.Unlock()
		return
	}
	l.answered.Add(1)
}

// atLeast waits until there were as many requests.
func (l *load) atLeast(n int64) {
	for tick := time.Tick(20 * time.Millisecond); l.answered.Load() < n; {
		<-tick
	}
}

// end stops the clients. It returns the number of requests and the failures.
func (l *load) end() (requests int, failures []string) {
	close(l.stop)
	l.clients.Wait()
	return int(l.answered.Load()) + len(l.failures), l.failures
}
