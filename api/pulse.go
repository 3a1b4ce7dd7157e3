package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"pando.run/pando"
)

// A request may wait for minutes. A daemon that is stopped or out of reach accepts it too, and never
// answers. So the client asks for a sign of life while it waits.
const (
	pulseAfter = 2 * time.Second  // of a request without an answer
	pulseWait  = time.Second      // for a sign of life, and between two
	silentMax  = 10 * time.Second // without a sign of life: the request is given up
)

// silence is the error of a daemon that gave no sign of life.
type silence struct{ who string }

func (s silence) Error() string {
	return fmt.Sprintf("%v: %s gave no sign of life for %s", pando.ErrUnavailable, s.who, silentMax)
}

func (s silence) Unwrap() error { return pando.ErrUnavailable }

// do sends a request. It reports a daemon without a sign of life to Waits, and then gives up.
func (c *Client) do(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	answered, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		if err := c.watch(ctx, answered); err != nil {
			cancel(err)
		}
	}()
	resp, err := c.http.Do(c.traced(r.WithContext(ctx)))
	close(answered)
	<-watched
	if err == nil {
		resp.Body = body{resp.Body, func() { cancel(nil) }}
		return resp, nil
	}
	cancel(nil)
	if lost, silent := errors.AsType[silence](context.Cause(ctx)); silent {
		return nil, unknownOutcome(r, lost)
	}
	return nil, err
}

// unknownOutcome returns the error of a request without an answer. A change may take effect later.
func unknownOutcome(r *http.Request, err error) error {
	if r.Method == http.MethodGet {
		return err
	}
	return fmt.Errorf("%w; the change may take effect once it runs on: read it back then", err)
}

// body is the body of an answer. Its end ends the context of the request.
type body struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (b body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// watch asks for signs of life until the answer comes. It returns a silence if none came for too
// long.
func (c *Client) watch(ctx context.Context, answered <-chan struct{}) error {
	rest, told := pulseAfter, false
	last := c.clock.Now()
	for {
		due, stop := c.clock.After(rest)
		select {
		case <-answered:
			stop()
			return nil
		case <-ctx.Done():
			stop()
			return nil
		case <-due:
		}
		rest = pulseWait
		if c.pulse(ctx, answered) {
			last, told = c.clock.Now(), false
			continue
		}
		select {
		case <-answered:
			return nil
		default:
		}
		if !told && c.Waits != nil && ctx.Err() == nil {
			c.Waits("a sign of life of " + c.daemon())
			told = true
		}
		if c.clock.Now().Sub(last) >= silentMax {
			return silence{c.daemon()}
		}
	}
}

// pulse reports whether the daemon gives a sign of life in time. Every HTTP server answers this
// request by itself, so it waits for no lock and no other machine.
func (c *Client) pulse(ctx context.Context, answered <-chan struct{}) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late, stop := c.clock.After(pulseWait)
	defer stop()
	lives := make(chan bool, 1)
	go func() {
		u := &url.URL{Scheme: "http", Host: "pando", Opaque: "*"}
		r := (&http.Request{Method: http.MethodOptions, URL: u, Host: u.Host}).WithContext(ctx)
		resp, err := c.http.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		lives <- err == nil
	}()
	select {
	case is := <-lives:
		return is
	case <-answered:
		return true
	case <-late:
		return false
	}
}

// daemon names the daemon that should answer.
func (c *Client) daemon() string {
	if c.Daemon != nil {
		if who := c.Daemon(); who != "" {
			return who
		}
	}
	return "the daemon behind " + c.socket
}
