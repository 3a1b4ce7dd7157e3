package pando

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The expected load of an instance follows the number of instances, and stays near the mean however
// a service grows.
func TestTheShareThatLeaves(t *testing.T) {
	for _, c := range []struct {
		steps []int
		leave float64 // at the last step
	}{
		{[]int{5}, 0}, {[]int{4, 4}, 0}, {[]int{4, 2}, 0}, {[]int{1, 2}, 0.9}, {[]int{1, 8}, 0.9857},
		{[]int{100, 101}, 0}, {[]int{10, 11, 12}, 0}, {[]int{10, 11, 12, 13}, 0.6667},
		{[]int{1, 2, 1, 2}, 0.9091},
	} {
		load, before, got := 0.0, 0, 0.0
		for _, n := range c.steps {
			load = loadAfter(load, before, n)
			if got, before = shareToLeave(load), n; got > 0 {
				load = spreadTo
			}
		}
		if math.Abs(got-c.leave) > 0.001 {
			t.Errorf("at the last step of %v, %.4f leave, want %.4f", c.steps, got, c.leave)
		}
	}
	load, mine, mean := 1.0, 1000.0, 1000.0 // connections of an old instance, and the mean of all
	for n := 100; n < 1000; n++ {
		load, mean = loadAfter(load, n, n+1), 100*1000/float64(n+1)
		if s := shareToLeave(load); s > 0 {
			mine, load = (1-s)*mine+s*mean, spreadTo
		}
		if mine/mean > 1.25 {
			t.Fatalf("with %d instances, an old one has %.2f of the mean", n+1, mine/mean)
		}
	}
}

// The share that leaves is exact, also while connections that were chosen before are on their way.
func TestAnExactShareLeaves(t *testing.T) {
	sp := newSpread(&http.Server{})
	for range 100 {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		sp.conns[a] = &kept{}
	}
	left := func() (n int) {
		for _, k := range sp.conns {
			if k.due.Load() != 0 {
				n++
			}
		}
		return n
	}
	for _, c := range []struct{ instances, want int }{{1, 0}, {2, 90}, {4, 100}} {
		if sp.saw(c.instances); left() != c.want {
			t.Errorf("at %d instances %d of 100 connections leave, want %d", c.instances, left(), c.want)
		}
	}
}

// fleet is a service of several servers behind a balancer that takes them in turn.
type fleet struct {
	ports   []string
	spreads []*spread
	served  []atomic.Int64
	open    atomic.Int64 // servers that take new connections
	turn    atomic.Int64
}

func newFleet(t *testing.T, size int, h2 bool) *fleet {
	f := &fleet{served: make([]atomic.Int64, size)}
	f.open.Store(1)
	for n := range size {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			f.served[n].Add(1)
			fmt.Fprint(w, "x")
		})}
		if h2 {
			s.Protocols = new(http.Protocols)
			s.Protocols.SetUnencryptedHTTP2(true)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f.spreads = append(f.spreads, newSpread(s))
		f.ports = append(f.ports, l.Addr().String())
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return f
}

// client keeps one connection, as a pool of size 1 does.
func (f *fleet) client(h2 bool) *http.Client {
	transport := &http.Transport{MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			at := f.ports[f.turn.Add(1)%f.open.Load()]
			return (&net.Dialer{}).DialContext(ctx, network, at)
		}}
	if h2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: transport}
}

// After a step from 1 to 8 instances, clients that keep their connections reach all of them within
// 2 s, and no request fails. Without Spread, the new instances get none.
func TestKeptConnectionsReachNewInstances(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size, clients = 8, 64
			f := newFleet(t, size, h2)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			var failed, done atomic.Int64
			for range clients {
				c := f.client(h2)
				all.Go(func() {
					defer c.CloseIdleConnections()
					pace := time.NewTicker(2 * time.Millisecond)
					defer pace.Stop()
					for ctx.Err() == nil {
						r, err := c.Get("http://service/")
						if err != nil {
							failed.Add(1)
							continue
						}
						_, _ = io.Copy(io.Discard, r.Body)
						r.Body.Close()
						done.Add(1)
						<-pace.C
					}
				})
			}
			for look := time.Tick(time.Millisecond); done.Load() < 10*clients; {
				<-look
			}
			f.spreads[0].saw(1)
			f.open.Store(size)
			for _, sp := range f.spreads {
				sp.saw(size)
			}
			ratio, deadline := 0.0, time.Now().Add(20*time.Second)
			for ratio == 0 || ratio > 1.25 && time.Now().Before(deadline) {
				ratio = f.ratio(500 * time.Millisecond)
			}
			cancel()
			all.Wait()
			if n := failed.Load(); n > 0 {
				t.Errorf("%d of %d requests failed", n, n+done.Load())
			}
			if ratio > 1.25 {
				t.Errorf("the busiest instance has %.2f of the mean", ratio)
			}
		})
	}
}

// ratio returns the requests of the busiest server over the mean, in a window.
func (f *fleet) ratio(window time.Duration) float64 {
	before := make([]int64, len(f.served))
	for n := range f.served {
		before[n] = f.served[n].Load()
	}
	<-time.After(window)
	most, sum := int64(0), int64(0)
	for n := range f.served {
		got := f.served[n].Load() - before[n]
		most, sum = max(most, got), sum+got
	}
	return float64(most) * float64(len(f.served)) / float64(max(sum, 1))
}
