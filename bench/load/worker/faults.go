package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// faults are those of a bad program: FAIL is the share of requests that it answers with 500, SLEEP
// the milliseconds before each answer, and LAST the request with which it exits. With REPORT=1 it
// reports the share of bad answers to Pando as bad_share: those that failed or took over LATE
// milliseconds.
type faults struct {
	fail      float64
	sleep     time.Duration
	late      time.Duration
	last      int64
	report    bool
	all, hurt atomic.Int64
}

// reports is the time between two reports.
const reports = 200 * time.Millisecond

func newFaults(value func(string) string) *faults {
	f := &faults{sleep: milliseconds(value("SLEEP")), late: milliseconds(value("LATE")),
		last: int64(number(value("LAST"))), report: value("REPORT") == "1"}
	f.fail, _ = strconv.ParseFloat(value("FAIL"), 64)
	return f
}

// of adds the faults to the page of a handler. Its probes see none.
func (f *faults) of(h http.Handler) http.Handler {
	if f.report {
		go f.send()
	}
	m := http.NewServeMux()
	m.Handle("/live", h)
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		began, n := time.Now(), f.all.Add(1)
		if n == f.last {
			os.Exit(1)
		}
		time.Sleep(f.sleep)
		bad := f.fails(n)
		if bad {
			w.WriteHeader(http.StatusInternalServerError)
		}
		h.ServeHTTP(w, r)
		if bad || f.late > 0 && time.Since(began) > f.late {
			f.hurt.Add(1)
		}
	})
	return m
}

// fails reports whether the request of a number fails. The failures are evenly spread.
func (f *faults) fails(n int64) bool {
	return int64(float64(n)*f.fail) > int64(float64(n-1)*f.fail)
}

// share returns the share of bad answers so far.
func (f *faults) share() float64 { return float64(f.hurt.Load()) / float64(max(1, f.all.Load())) }

// send reports the share of bad answers until the program ends.
func (f *faults) send() {
	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("PANDO_SOCKET"))
		}}}
	for range time.Tick(reports) {
		q, err := http.NewRequest(http.MethodPut, "http://self/v1/self/metrics",
			strings.NewReader(fmt.Sprintf(`{"bad_share": %g}`, f.share())))
		if err != nil {
			continue
		}
		if a, err := c.Do(q); err == nil {
			a.Body.Close()
		}
	}
}
