// Worker is a service with requests that cost processor time. GET /?ms=N answers after N
// milliseconds of hashing by one processor, or after the number in WORK. GET /live answers at once.
// With QUEUE=1 it serves one request at a time, also of /live, and drops those of clients that have
// left. It listens on PORT (8080), or on the socket of its starter (LISTEN_FDS of systemd), after
// START milliseconds.
//
// FAIL, SLEEP, LAST, LATE and REPORT make it a bad program that reports itself (see faults).
package main

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	l, err := listen()
	if err == nil {
		h := newFaults(os.Getenv).of(handler(number(os.Getenv("WORK")), os.Getenv("PANDO_INSTANCE")))
		if os.Getenv("QUEUE") == "1" {
			h = oneByOne(h)
		}
		err = http.Serve(l, h)
	}
	fmt.Fprintln(os.Stderr, "worker:", err)
	os.Exit(1)
}

// firstPassed is the first descriptor that a starter passes on (sd_listen_fds).
const firstPassed = 3

func listen() (net.Listener, error) {
	time.Sleep(milliseconds(os.Getenv("START")))
	if os.Getenv("LISTEN_FDS") == "" {
		return net.Listen("tcp", ":"+cmp.Or(os.Getenv("PORT"), "8080"))
	}
	f := os.NewFile(firstPassed, "listener")
	defer f.Close()
	return net.FileListener(f)
}

// handler answers with the name of the instance.
func handler(ms float64, name string) http.Handler {
	m := http.NewServeMux()
	perMillisecond := sync.OnceValue(speed)
	if ms > 0 {
		perMillisecond() // before the load; a program without work starts without delay
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		work := ms
		if asked := r.FormValue("ms"); asked != "" {
			work = number(asked)
		}
		if work > 0 {
			hash(int(work * perMillisecond()))
		}
		fmt.Fprintln(w, name)
	})
	m.HandleFunc("/live", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	return m
}

// oneByOne serves one request at a time, in the order of their arrival.
func oneByOne(h http.Handler) http.Handler {
	turn := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
			if r.Context().Err() == nil {
				h.ServeHTTP(w, r)
			}
		case <-r.Context().Done():
		}
	})
}

// number returns a number of milliseconds; 0: it is none, or negative.
func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) {
		return 0
	}
	return min(n, 10_000)
}

// milliseconds returns the duration of such a number.
func milliseconds(text string) time.Duration {
	return time.Duration(number(text) * float64(time.Millisecond))
}

// speed returns the number of hashes in a millisecond: the best of some short trials.
func speed() float64 {
	const rounds = 2000
	best := 0.0
	for range 10 {
		begun := time.Now()
		hash(rounds)
		best = max(best, rounds/(time.Since(begun).Seconds()*1000))
	}
	return best
}

func hash(rounds int) {
	sum := sha256.Sum256(nil)
	for range rounds {
		sum = sha256.Sum256(sum[:])
	}
}
