package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/lifeline"
	"pando.run/pando/api/problem"
)

// Client calls the operators' API over its unix socket. Errors carry the root's sentinels.
type Client struct {
	// Operator is the name of the person, for the record. It may be empty.
	Operator string
	// Waits gets what a request waits for, after some seconds, such as "registry r.example". It may be
	// nil.
	Waits func(what string)
	// Daemon names the daemon behind the socket with its state, for a request without an answer. It may
	// be nil.
	Daemon func() string
	http   *http.Client
	socket string
	clock  pando.Clock
}

// NewClient returns a client of the daemons behind a socket. The clock times the retries of Watch.
func NewClient(socket string, clock pando.Clock) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	h := &http.Client{Transport: &http.Transport{DialContext: dial}}
	return &Client{http: h, socket: socket, clock: clock}
}

// NewRemoteClient returns a client of a server elsewhere, with a token of a tenant. to dials with
// the TLS configuration that the token demands; at names the server in errors.
func NewRemoteClient(
	at, token string, clock pando.Clock,
	to func(ctx context.Context, network, addr string) (net.Conn, error),
) *Client {
	t := &http.Transport{DialContext: to, DisableCompression: true}
	return &Client{http: &http.Client{Transport: bearing{t, token}}, socket: at, clock: clock}
}

// bearing adds a token to each request.
type bearing struct {
	next  http.RoundTripper
	token string
}

// RoundTrip implements http.RoundTripper.
func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// tries is how often a request is sent until an answer arrives. A request that changes something
// carries a key, so the server executes it once.
const tries = 3

func (c *Client) send(
	ctx context.Context, method, path string, query url.Values, header http.Header, body any,
) (io.ReadCloser, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	if header == nil {
		header = http.Header{}
	}
	if method != http.MethodGet {
		header.Set("Idempotency-Key", rand.Text())
		if c.Operator != "" {
			header.Set(operatorHeader, c.Operator)
		}
	}
	u := url.URL{Scheme: "http", Host: "pando", Path: path, RawQuery: query.Encode()}
	for n := 1; ; n++ {
		r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		r.Header = header
		resp, err := c.do(r)
		var op *net.OpError
		switch {
		case err == nil:
			return answered(resp)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%s %s: %w", method, path, ctx.Err())
		case errors.Is(err, pando.ErrInvalid), errors.Is(err, pando.ErrForbidden):
			return nil, err
		case errors.As(err, new(lifeline.Silence)):
			return nil, err
		case errors.As(err, &op) && op.Op == "dial":
			return nil, c.unreachable(op)
		case n == tries:
			return nil, fmt.Errorf("%w: the connection to %s broke %d times: %w",
				pando.ErrUnavailable, c.socket, n, err)
		}
	}
}

// unreachable explains why the socket gave no answer.
func (c *Client) unreachable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return problem.Remote(fmt.Sprintf("you may not open %s: be root, or in its group", c.socket),
			pando.ErrForbidden)
	}
	if _, remote := c.http.Transport.(bearing); remote {
		return fmt.Errorf("%w: no server of pando answers at %s: %w", pando.ErrUnavailable, c.socket, err)
	}
	return problem.Remote(
		fmt.Sprintf("pando is not running on this machine (no answer at %s): start it with `pando up`",
			c.socket), pando.ErrUnavailable)
}

// answered returns the body of a good answer, or the error of a bad one.
func answered(resp *http.Response) (io.ReadCloser, error) {
	if resp.StatusCode < 400 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var p Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		return nil, fmt.Errorf("%s %s: %s", resp.Request.Method, resp.Request.URL.Path, resp.Status)
	}
	return nil, p.err()
}

func call[T any](
	ctx context.Context, c *Client, method, path string, query url.Values, body any,
) (v T, err error) {
	r, err := c.send(ctx, method, path, query, nil, body)
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

// Rollback deploys the spec of an older revision (0: the one before).
func (c *Client) Rollback(
	ctx context.Context, s pando.ServiceKey, to int, reason string,
) (pando.ServiceStatus, error) {
	path, q := of(s, "/rollback")
	return call[pando.ServiceStatus](ctx, c, http.MethodPost, path, q,
		GoingBack{To: to, Reason: reason})
}

// Revisions lists the stored revisions of a service, oldest first.
func (c *Client) Revisions(ctx context.Context, s pando.ServiceKey) ([]pando.Revision, error) {
	path, q := of(s, "/revisions")
	return call[[]pando.Revision](ctx, c, http.MethodGet, path, q, nil)
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

// Remove removes a service after its instances have drained.
func (c *Client) Remove(ctx context.Context, s pando.ServiceKey, purge bool) error {
	path, q := of(s, "")
	q.Set("purge", strconv.FormatBool(purge))
	_, err := call[struct{}](ctx, c, http.MethodDelete, path, q, nil)
	return err
}

// Pin fixes the number of instances for a while.
func (c *Client) Pin(
	ctx context.Context, s pando.ServiceKey, n int, keep time.Duration,
) (pando.ServiceStatus, error) {
	path, q := of(s, "/pin")
	return call[pando.ServiceStatus](ctx, c, http.MethodPost, path, q,
		Pinned{Instances: n, ForSeconds: keep.Seconds()})
}

// Unpin makes scaling automatic again.
func (c *Client) Unpin(ctx context.Context, s pando.ServiceKey) (pando.ServiceStatus, error) {
	path, q := of(s, "/pin")
	return call[pando.ServiceStatus](ctx, c, http.MethodDelete, path, q, nil)
}

// Why lists the decisions about a service.
func (c *Client) Why(ctx context.Context, s pando.ServiceKey, most int) ([]pando.Because, error) {
	path, q := of(s, "/why")
	q.Set("max", strconv.Itoa(most))
	return call[[]pando.Because](ctx, c, http.MethodGet, path, q, nil)
}

// Fits lists the hosts, each with whether the next instance of a service may start there.
func (c *Client) Fits(ctx context.Context, s pando.ServiceKey) ([]pando.HostFit, error) {
	path, q := of(s, "/fits")
	return call[[]pando.HostFit](ctx, c, http.MethodGet, path, q, nil)
}

// Logs streams the log of one instance, or of all with names before the lines. times puts the time
// before each line.
func (c *Client) Logs(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, l pando.LogQuery, times bool,
) (io.ReadCloser, error) {
	path, q := of(s, "/logs")
	q.Set("lines", strconv.Itoa(l.Lines))
	q.Set("instance", string(i))
	q.Set("follow", strconv.FormatBool(l.Follow))
	q.Set("times", strconv.FormatBool(times))
	q.Set("match", l.Match)
	if !l.Since.IsZero() {
		q.Set("since", l.Since.UTC().Format(time.RFC3339Nano))
	}
	return c.send(ctx, http.MethodGet, path, q, nil, nil)
}

// Stats returns the use of a service's instances, or of all instances for the zero key.
func (c *Client) Stats(ctx context.Context, s pando.ServiceKey) ([]pando.InstanceUsage, error) {
	q := url.Values{}
	if s.Name != "" {
		q = url.Values{"service": {string(s.Name)}, "tenant": {string(s.Tenant)}}
	}
	return call[[]pando.InstanceUsage](ctx, c, http.MethodGet, "/v1/stats", q, nil)
}

// StateLog lists the newest commits of a service's state.
func (c *Client) StateLog(
	ctx context.Context, s pando.ServiceKey, most int,
) ([]pando.StateCommit, error) {
	path, q := of(s, "/state")
	q.Set("max", strconv.Itoa(most))
	return call[[]pando.StateCommit](ctx, c, http.MethodGet, path, q, nil)
}

// Hosts lists the hosts.
func (c *Client) Hosts(ctx context.Context) ([]pando.HostStatus, error) {
	return call[[]pando.HostStatus](ctx, c, http.MethodGet, "/v1/hosts", nil, nil)
}

// RemoveHost ends the membership of a host.
func (c *Client) RemoveHost(ctx context.Context, h pando.HostName, force bool) error {
	q := url.Values{"force": {strconv.FormatBool(force)}}
	_, err := call[struct{}](ctx, c, http.MethodDelete, "/v1/hosts/"+string(h), q, nil)
	return err
}

// watchAgain is how long a watch waits before it reopens a broken stream.
const watchAgain = 100 * time.Millisecond

// Watch calls take for every change after a store revision (0: from now on) until ctx ends. Once it
// has begun, it resumes after each broken connection, including a restart of the server. It ends
// with ErrCompacted when the store no longer has the history. The caller then reads the current
// records and watches from there.
func (c *Client) Watch(ctx context.Context, after pando.StoreRevision, take func(Event)) error {
	last := strconv.FormatInt(int64(after), 10)
	for begun := false; ; begun = true {
		header := http.Header{}
		if last != "0" {
			header.Set("Last-Event-ID", last)
		}
		r, err := c.send(ctx, http.MethodGet, "/v1/watch", nil, header, nil)
		if err == nil {
			err = listen(r, &last, take)
			r.Close()
		} else if !begun {
			return err
		}
		if err != nil && !errors.Is(err, pando.ErrUnavailable) {
			return err
		}
		if err := pando.Sleep(ctx, c.clock, watchAgain); err != nil {
			return err
		}
	}
}

// Event is one change in its wire format.
type Event struct {
	Revision pando.StoreRevision `json:"revision"`
	Kind     pando.Kind          `json:"kind"`
	Key      pando.Key           `json:"key"`
	Deleted  bool                `json:"deleted,omitempty"`
	Value    json.RawMessage     `json:"value,omitempty"`
}

// eventBytesMax bounds an event. JSON text may take six times the bytes of the largest record.
const eventBytesMax = 16 << 20

// listen reads server-sent events until the stream ends, and keeps the newest id in last.
func listen(r io.Reader, last *string, take func(Event)) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, eventBytesMax)
	var kind, data string
	for in.Scan() {
		name, value, _ := strings.Cut(in.Text(), ": ")
		switch name {
		case "id":
			if value != "" { // an empty id would resume from now, with a gap
				*last = value
			}
		case "event":
			kind = value
		case "data":
			data = value
		case "":
			if value != "" || data == "" {
				continue // a comment, or only an id
			}
			if kind == "problem" {
				var p Problem
				if err := json.Unmarshal([]byte(data), &p); err != nil {
					return fmt.Errorf("a problem of the watch: %w", err)
				}
				return p.err()
			}
			var e Event
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				return fmt.Errorf("an event of the watch: %w", err)
			}
			take(e)
			kind, data = "", ""
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("an event of the watch: %w: at most %d bytes", pando.ErrTooLarge, eventBytesMax)
	}
	return nil // the connection broke
}

// Images lists the images of the server's host.
func (c *Client) Images(ctx context.Context) ([]pando.ImageStatus, error) {
	return call[[]pando.ImageStatus](ctx, c, http.MethodGet, "/v1/images", nil, nil)
}

// PullImage brings an image to the server's host.
func (c *Client) PullImage(ctx context.Context, reference string) (pando.ImageStatus, error) {
	return call[pando.ImageStatus](ctx, c, http.MethodPost, "/v1/images", nil,
		Pulling{Reference: reference})
}

// RemoveImage deletes an image from the server's host.
func (c *Client) RemoveImage(ctx context.Context, digest string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, "/v1/images/"+digest, nil, nil)
	return err
}
