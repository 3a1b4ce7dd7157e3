package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// faults fails a share of the requests, and reports that share to Pando as error_rate.
type faults struct {
	share       float64
	all, failed atomic.Int64
}

// next counts a request and reports whether it fails. The failures are evenly spread.
func (f *faults) next() bool {
	n := float64(f.all.Add(1))
	fails := int64(n*f.share) > int64((n-1)*f.share)
	if fails {
		f.failed.Add(1)
	}
	return fails
}

// report sends the share of failed requests five times per second.
func (f *faults) report() {
	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("PANDO_SOCKET"))
		}}}
	for range time.Tick(200 * time.Millisecond) {
		rate := float64(f.failed.Load()) / float64(max(1, f.all.Load()))
		q, err := http.NewRequest(http.MethodPut, "http://self/v1/self/metrics",
			strings.NewReader(fmt.Sprintf(`{"error_rate": %g}`, rate)))
		if err != nil {
			continue
		}
		if a, err := c.Do(q); err == nil {
			a.Body.Close()
		}
	}
}
