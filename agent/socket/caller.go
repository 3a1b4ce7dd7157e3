// Package socket serves the socket of one instance: its connections, its requests and their bounds.
//
// It never answers a request: the API of the instances does.
package socket

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"pando.run/pando"
)

// Caller is the part of an instance's API that belongs to its requests.
type Caller struct {
	pace   pace
	mu     sync.Mutex
	asking *pando.Intent // its one outstanding request
	metric map[string]float64
	// conns are the open connections of the instance to its socket.
	conns map[net.Conn]bool
}

// connected follows the connections of the instance, for http.Server.ConnState.
func (c *Caller) connected(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateNew:
		if c.conns == nil {
			c.conns = map[net.Conn]bool{}
		}
		c.conns[conn] = true
	case http.StateClosed, http.StateHijacked:
		delete(c.conns, conn)
	}
}

// HangUp closes every connection of the instance to its socket, and returns their number. A program
// that is frozen cannot keep one.
func (c *Caller) HangUp() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
	return len(c.conns)
}

// Begin makes the intent that ask returns the outstanding request of the instance. If another is
// outstanding, begin returns that one and false.
func (c *Caller) Begin(ask func() pando.Intent) (i pando.Intent, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking != nil {
		return *c.asking, false
	}
	i = ask()
	c.asking = &i
	return i, true
}

// Answered ends the outstanding request.
func (c *Caller) Answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = nil
}

// pace spaces the asks of one instance, because each ask is a durable record.
type pace struct {
	mu   sync.Mutex
	next time.Time // when the bucket is empty
}

// wait returns when the instance may ask again.
func (p *pace) wait(ctx context.Context, c pando.Clock) error {
	p.mu.Lock()
	now := c.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(askWait)
	late := p.next.Sub(now) - asksBurst*askWait
	p.mu.Unlock()
	if late <= 0 {
		return nil
	}
	return pando.Sleep(ctx, c, late)
}

// Serve answers the requests of the instance until ctx ends or the listener closes.
func (c *Caller) Serve(
	ctx context.Context, l net.Listener, clock pando.Clock, api http.Handler,
) error {
	server := &http.Server{
		Handler:           bounded(api),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleWaitMax, MaxHeaderBytes: headerBytesMax,
		ConnState: c.connected,
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	return server.Serve(&fewListener{
		Listener: l, free: make(chan struct{}, connectionsMax), ctx: ctx, clock: clock,
	})
}

// Paced returns once the instance may ask again.
func (c *Caller) Paced(ctx context.Context, clock pando.Clock) error { return c.pace.wait(ctx, clock) }

// Pending returns the outstanding request of the instance, or nil.
func (c *Caller) Pending() *pando.Intent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asking
}

// Metrics returns the newest numbers of the application. They are never changed.
func (c *Caller) Metrics() map[string]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metric
}

// CheckMetrics returns nil if an instance may have so many numbers, else the reason.
func CheckMetrics(m map[string]float64) error {
	if len(m) > metricsMax {
		return fmt.Errorf("metrics: %w: %d numbers, at most %d",
			pando.ErrTooLarge, len(m), metricsMax)
	}
	return nil
}

// SetMetrics keeps the numbers of the application.
func (c *Caller) SetMetrics(m map[string]float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metric = m
}
