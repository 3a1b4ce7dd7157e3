package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"pando.run/pando"
)

// Client calls the operators' API over its unix socket. Errors carry the root's sentinels.
type Client struct {
	http   *http.Client
	socket string
}

// NewClient returns a client of the daemons behind a socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{http: &http.Client{Transport: &http.Transport{DialContext: dial}}, socket: socket}
}

func (c *Client) send(ctx context.Context, method, path string, query url.Values, body any) (io.ReadCloser, error) {
	var b io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		b = bytes.NewReader(text)
	}
	u := url.URL{Scheme: "http", Host: "pando", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), b)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%w: pando is not running on this machine (no answer at %s): start it with `pando up`", pando.ErrUnavailable, c.socket)
	}
	if resp.StatusCode < 400 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var p Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		return nil, fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return nil, p.err()
}

func call[T any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (v T, err error) {
	r, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return v, err
	}
	defer r.Close()
	err = json.NewDecoder(r).Decode(&v)
	if err == io.EOF { // an answer without a body
		err = nil
	}
	return v, err
}

func of(s pando.ServiceKey, rest string) (string, url.Values) {
	return "/v1/services/" + string(s.Name) + rest, url.Values{"tenant": {string(s.Tenant)}}
}

// Deploy makes the spec the newest revision of its service.
func (c *Client) Deploy(ctx context.Context, s pando.Spec) (pando.ServiceStatus, error) {
	return call[pando.ServiceStatus](ctx, c, http.MethodPost, "/v1/services", nil, s)
}

// Services lists every service.
func (c *Client) Services(ctx context.Context) ([]pando.ServiceStatus, error) {
	return call[[]pando.ServiceStatus](ctx, c, http.MethodGet, "/v1/services", nil, nil)
}

// Service shows one service.
func (c *Client) Service(ctx context.Context, s pando.ServiceKey) (pando.ServiceStatus, error) {
	path, q := of(s, "")
	return call[pando.ServiceStatus](ctx, c, http.MethodGet, path, q, nil)
}

// Remove lets a service go.
func (c *Client) Remove(ctx context.Context, s pando.ServiceKey, purge bool) error {
	path, q := of(s, "")
	q.Set("purge", strconv.FormatBool(purge))
	_, err := call[struct{}](ctx, c, http.MethodDelete, path, q, nil)
	return err
}

// Pin fixes the number of instances for a while.
func (c *Client) Pin(ctx context.Context, s pando.ServiceKey, n int, keep time.Duration) (pando.ServiceStatus, error) {
	path, q := of(s, "/pin")
	return call[pando.ServiceStatus](ctx, c, http.MethodPost, path, q, Pinned{Instances: n, ForSeconds: keep.Seconds()})
}

// Unpin makes scaling automatic again.
func (c *Client) Unpin(ctx context.Context, s pando.ServiceKey) (pando.ServiceStatus, error) {
	path, q := of(s, "/pin")
	return call[pando.ServiceStatus](ctx, c, http.MethodDelete, path, q, nil)
}

// Why lists what was decided about a service.
func (c *Client) Why(ctx context.Context, s pando.ServiceKey, most int) ([]pando.Because, error) {
	path, q := of(s, "/why")
	q.Set("max", strconv.Itoa(most))
	return call[[]pando.Because](ctx, c, http.MethodGet, path, q, nil)
}

// Logs streams the log of an instance, or of all.
func (c *Client) Logs(ctx context.Context, s pando.ServiceKey, i pando.InstanceID, lines int, follow bool) (io.ReadCloser, error) {
	path, q := of(s, "/logs")
	q.Set("lines", strconv.Itoa(lines))
	q.Set("instance", string(i))
	q.Set("follow", strconv.FormatBool(follow))
	return c.send(ctx, http.MethodGet, path, q, nil)
}

// StateLog lists the newest commits of a service's state.
func (c *Client) StateLog(ctx context.Context, s pando.ServiceKey, most int) ([]pando.StateCommit, error) {
	path, q := of(s, "/state")
	q.Set("max", strconv.Itoa(most))
	return call[[]pando.StateCommit](ctx, c, http.MethodGet, path, q, nil)
}

// Hosts lists the hosts.
func (c *Client) Hosts(ctx context.Context) ([]pando.Host, error) {
	return call[[]pando.Host](ctx, c, http.MethodGet, "/v1/hosts", nil, nil)
}
