// Package load applies an open loop of HTTP requests to an address. It has the program that answers
// them (bench/load/worker) and the peers on the way. A request counts from when it was due, so a
// slow answer delays and hides no other. It never decides which answer is good.
package load

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando/bench/sheet"
)

// OpenMax is the number of open connections of a load. A connection beyond it fails at once.
const OpenMax = 8192

// Dial opens a connection to an address.
type Dial func(address string) (net.Conn, error)

// Load is an open loop of connections to one address, at random times with a mean rate.
type Load struct {
	Dial    Dial
	Address string
	// Rate is that of new connections per second, at a time since the begin.
	Rate  func(since time.Duration) float64
	Lasts time.Duration
	// Until ends the load before it has lasted its time; nil: it lasts.
	Until <-chan struct{}
	Seed  uint64 // of the random moments and visits: loads of one seed are equal
	// Patience is the longest time of a request. Later answers count as none.
	Patience time.Duration
	// Visit draws the requests of a connection; nil: one of the path /.
	Visit func(*rand.Rand) Visit
}

// Visit holds the requests of one connection, one after the other.
type Visit struct {
	Path     string
	Requests int
}

// Reply is the end of one request.
type Reply struct {
	Due, Took time.Duration // since the begin of the load; since it was due
	OK        bool          // it was answered within the patience
	By        string        // the answer: the name of the instance
}

// Always returns a rate that does not change.
func Always(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// Run applies the load and returns the replies, in the order in which they were due.
func (l Load) Run() []Reply {
	var mu sync.Mutex
	var out []Reply
	var calling sync.WaitGroup
	var open atomic.Int64
	dice := rand.New(rand.NewPCG(7, l.Seed))
	begin := time.Now()
	for due := time.Duration(0); ; {
		due += time.Duration(dice.ExpFloat64() / l.Rate(due) * float64(time.Second))
		if due >= l.Lasts {
			break
		}
		v := Visit{"/", 1}
		if l.Visit != nil {
			v = l.Visit(dice)
		}
		select {
		case <-time.After(time.Until(begin.Add(due))):
		case <-l.Until:
		}
		if l.ended() {
			break
		}
		calling.Go(func() {
			var replies []Reply
			if open.Add(1) > OpenMax {
				replies = []Reply{{Due: due, Took: l.Patience}}
			} else {
				replies = l.visit(begin, due, v)
			}
			open.Add(-1)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, replies...)
		})
	}
	calling.Wait()
	slices.SortFunc(out, func(a, b Reply) int { return int(a.Due - b.Due) })
	return out
}

// ended reports whether the load ends early.
func (l Load) ended() bool {
	select {
	case <-l.Until:
		return true
	default:
		return false
	}
}

// visit makes the requests of a connection. The next one is due once the former is answered. The
// first failure ends the connection.
func (l Load) visit(begin time.Time, due time.Duration, v Visit) (out []Reply) {
	conn, err := l.Dial(l.Address)
	if err != nil {
		return []Reply{{Due: due, Took: l.Patience}}
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for n := range v.Requests {
		_ = conn.SetDeadline(begin.Add(due + l.Patience))
		by, err := ask(conn, in, v.Path, n == v.Requests-1)
		took := min(time.Since(begin)-due, l.Patience)
		ok := err == nil && took < l.Patience
		out = append(out, Reply{due, took, ok, by})
		if !ok {
			return out
		}
		due = time.Since(begin)
	}
	return out
}

// nameMax is the number of bytes that an answer is read for.
const nameMax = 64

func ask(conn net.Conn, in *bufio.Reader, path string, last bool) (by string, err error) {
	end := ""
	if last {
		end = "Connection: close\r\n"
	}
	if _, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: web\r\n%s\r\n", path, end); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, nameMax))
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the answer is %s", answer.Status)
	}
	return strings.TrimSpace(string(body)), err
}

// Quantile returns the time in milliseconds below which a share (0 to 1) of the replies lies.
func Quantile(all []Reply, share float64) float64 {
	took := make([]float64, len(all))
	for n, r := range all {
		took[n] = r.Took.Seconds() * 1000
	}
	return sheet.Quantile(took, share)
}

// Answered counts the replies that were answered.
func Answered(all []Reply) (n int) {
	for _, r := range all {
		if r.OK {
			n++
		}
	}
	return n
}

// Capacity returns the answers per second of an address to callers in closed loops without a rest.
func Capacity(
	dial Dial, address string, callers int, lasts time.Duration,
) float64 {
	begin := time.Now()
	all := Closed(dial, address, callers, lasts)
	return float64(Answered(all)) / time.Since(begin).Seconds()
}

// Closed returns the replies of an address to callers in closed loops without a rest. Each request
// has a connection of its own.
func Closed(dial Dial, address string, callers int, lasts time.Duration) (out []Reply) {
	l := Load{Dial: dial, Address: address, Patience: time.Minute}
	var mu sync.Mutex
	var calling sync.WaitGroup
	begin := time.Now()
	for range callers {
		calling.Go(func() {
			var own []Reply
			for due := time.Since(begin); due < lasts; due = time.Since(begin) {
				own = append(own, l.visit(begin, due, Visit{"/", 1})...)
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, own...)
		})
	}
	calling.Wait()
	return out
}
