package load

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func run(address, schedule string, t *testing.T) (sum Report) {
	t.Helper()
	s, err := ParseSchedule(schedule)
	if err != nil {
		t.Fatal(err)
	}
	sum.Failed = map[string]int{}
	Run(context.Background(), Config{Address: address, Path: "/", Schedule: s, Connections: 8,
		FreshShare: 0.1, Timeout: 5 * time.Second, ReportEvery: 100 * time.Millisecond}, func(r Report) {
		sum.Offered, sum.Answered = sum.Offered+r.Offered, sum.Answered+r.Answered
		sum.Broken, sum.IdleClosed = sum.Broken+r.Broken, sum.IdleClosed+r.IdleClosed
		for why, n := range r.Failed {
			sum.Failed[why] += n
		}
		sum.LatencyMicros = r.LatencyMicros
	})
	return sum
}

func TestEveryRequestIsAccountedFor(t *testing.T) {
	var served atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served.Add(1)%7 == 0 {
			w.Header().Set("Connection", "close")
		}
	}))
	defer s.Close()
	r := run(s.Listener.Addr().String(), "100,1s:300", t)
	if r.Offered != 200 || r.Answered != 200 || served.Load() != 200 || r.Broken != 0 {
		t.Fatalf("served %d, %+v: want 200 of each and none broken", served.Load(), r)
	}
}

func TestAResetIsABreakAndNeverSentAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1024))
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	r := run(l.Addr().String(), "20,500ms:20", t)
	if r.Broken != 10 || r.Failed["connection broken: connection reset by peer"] != 10 ||
		r.IdleClosed != 0 {
		t.Fatalf("%+v: want 10 broken", r)
	}
}

func TestAStallShowsInTheLatency(t *testing.T) {
	begin := time.Now()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		<-time.After(time.Until(begin.Add(500 * time.Millisecond)))
	}))
	defer s.Close()
	r := run(s.Listener.Addr().String(), "100,400ms:100", t)
	if r.Answered != 40 || r.LatencyMicros[0] < 100_000 {
		t.Fatalf("%+v: want 40 answered, half of them later than 100 ms", r)
	}
}

func TestScheduleRefusesWhatItCannotRead(t *testing.T) {
	for _, bad := range []string{"", "x", "5", "5,1s", "5,1s:-1", "5,0s:3", "5,1s:NaN"} {
		if s, err := ParseSchedule(bad); err == nil {
			t.Errorf("%q was read as %v", bad, s)
		}
	}
}

// answeredOnce returns a sender with one answer by web-a. After the answer, the server calls then.
func answeredOnce(
	t *testing.T, timeout time.Duration, then func(*net.TCPConn, *bufio.Reader),
) *sender {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		read := bufio.NewReader(conn)
		_, _ = http.ReadRequest(read)
		_, _ = io.WriteString(conn,
			"HTTP/1.1 200 OK\r\nX-Served-By: web-a\r\nContent-Length: 0\r\n\r\n")
		then(conn.(*net.TCPConn), read)
	}()
	s := &sender{config: Config{Address: l.Addr().String(), Path: "/", Timeout: timeout}}
	t.Cleanup(s.close)
	if o := s.send(false); o.failed != "" {
		t.Fatalf("the first request: %+v", o)
	}
	return s
}

// A server that takes connections and then is silent: the timeout names the server of an earlier
// answer. A connection that is not taken at all is tried again.
func TestATimeoutNamesTheServerOfItsConnection(t *testing.T) {
	s := answeredOnce(t, 300*time.Millisecond, func(*net.TCPConn, *bufio.Reader) {
		<-t.Context().Done()
	})
	o := s.send(false)
	if o.failed != timedOut || o.at != "web-a" || o.broken != 0 {
		t.Errorf("the second request: %+v", o)
	}
	counts := newTally()
	counts.count(o, time.Second)
	counts.count(outcome{failed: "status 503"}, time.Second)
	if r := counts.take(time.Second, true); r.Unanswered["web-a"] != 1 || len(r.Unanswered) != 1 ||
		r.Failed[timedOut] != 1 {
		t.Errorf("the report is %+v", r)
	}
}

// A reset names the server of an earlier answer: the flow may have reached another one.
func TestAResetNamesTheServerOfItsConnection(t *testing.T) {
	s := answeredOnce(t, time.Minute, func(conn *net.TCPConn, read *bufio.Reader) {
		_, _ = read.Peek(1)
		_ = conn.SetLinger(0)
	})
	counts := newTally()
	counts.count(s.send(false), time.Second)
	if r := counts.take(time.Second, true); r.Broken != 1 || r.BrokenAt["web-a"] != 1 ||
		len(r.BrokenAt) != 1 || r.Failed["connection broken: connection reset by peer"] != 1 {
		t.Errorf("the second request: %+v", r)
	}
}

func TestARefusedConnectionIsNotTriedAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s := sender{config: Config{Address: l.Addr().String(), Path: "/", Timeout: time.Minute}}
	o := s.send(true)
	if !strings.HasPrefix(o.failed, "dial: ") || o.dialled != 1 {
		t.Errorf("a port without a server: %+v", o)
	}
}
