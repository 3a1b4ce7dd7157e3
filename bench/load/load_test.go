package load

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

func dial(address string) (net.Conn, error) { return net.Dial("tcp", address) }

func TestEachRequestOfALoadHasAReply(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, r.URL.Path)
	}))
	defer s.Close()
	l := Load{Dial: dial, Address: s.Listener.Addr().String(), Rate: Always(200),
		Lasts: 200 * time.Millisecond, Patience: 10 * time.Second,
		Visit: func(*rand.Rand) Visit { return Visit{"/page", 3} }}
	all := l.Run()
	if n := len(all); n < 30 || n > 300 || n%3 != 0 || Answered(all) != n {
		t.Fatalf("%d replies, %d of them answered; want about 120, by threes", n, Answered(all))
	}
	for n, r := range all {
		if r.By != "/page" || r.Took <= 0 || n > 0 && r.Due < all[n-1].Due {
			t.Errorf("reply %d is %+v", n, r)
		}
	}
	if q := Quantile(all, .5); q <= 0 || q > 10_000 {
		t.Errorf("the median is %g ms", q)
	}
}

func TestARequestWithoutAnAnswerCountsAsItsPatience(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	const patience = 50 * time.Millisecond
	for _, l := range []net.Listener{silent, closed} {
		all := Load{Dial: dial, Address: l.Addr().String(), Rate: Always(100),
			Lasts: 100 * time.Millisecond, Patience: patience}.Run()
		if len(all) == 0 || Answered(all) != 0 || all[0].Took != patience {
			t.Errorf("%s gives %+v", l.Addr(), all)
		}
	}
}

func TestALoadEndsEarly(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "web-1")
	}))
	defer s.Close()
	end := make(chan struct{})
	first := make(chan struct{}, 1)
	l := Load{Address: s.Listener.Addr().String(), Rate: Always(1000), Lasts: time.Hour,
		Until: end, Patience: 10 * time.Second, Dial: func(address string) (net.Conn, error) {
			select {
			case first <- struct{}{}:
			default:
			}
			return dial(address)
		}}
	all := make(chan []Reply)
	go func() { all <- l.Run() }()
	<-first
	close(end)
	select {
	case got := <-all:
		if len(got) == 0 || Answered(got) != len(got) {
			t.Errorf("%d of %d requests were answered", Answered(got), len(got))
		}
	case <-time.After(30 * time.Second):
		t.Error("the load continues")
	}
}

func TestCallersWaitForTheirAnswers(t *testing.T) {
	var now, most atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		fmt.Fprintln(w, "web-1")
	}))
	defer s.Close()
	all := Closed(dial, s.Listener.Addr().String(), 3, 100*time.Millisecond)
	if len(all) < 3 || Answered(all) != len(all) || most.Load() > 3 {
		t.Errorf("%d of %d requests were answered, %d at once by 3 callers", Answered(all), len(all),
			most.Load())
	}
}
