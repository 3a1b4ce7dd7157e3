package api

import (
	"fmt"
	"net/http"

	"pando.run/pando"
	"pando.run/pando/api/lifeline"
)

// do sends a request. It reports a daemon without a sign of life to Waits, and then gives up. It gives
// up no open session, because its command runs on.
func (c *Client) do(r *http.Request) (*http.Response, error) {
	q := lifeline.Request{Client: c.http, Clock: c.clock, Who: c.daemon, Sentinel: pando.ErrUnavailable,
		KeepsSession: true}
	if c.Waits != nil {
		q.Waits = func(who string) { c.Waits("a sign of life of " + who) }
	}
	resp, err := q.Do(c.traced(r))
	if _, silent := err.(lifeline.Silence); silent && r.Method != http.MethodGet {
		err = fmt.Errorf("%w; the change may take effect once it runs on: read it back then", err)
	}
	return resp, err
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
