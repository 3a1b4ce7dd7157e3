// Package peer carries requests between servers and agents over HTTP: on a unix socket within a
// host, over TLS between hosts. It also carries a host's request to become a member.
//
// It never stores anything, and retries only reads of states. For other requests only the asker can
// judge whether the answer still matters.
package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/api/lifeline"
	"pando.run/pando/api/logs"
)

const (
	dialWaitMax  = time.Second // on one network, a slower host counts as gone
	idleConns    = 16          // kept open to one host
	problemBytes = 64 << 10
)

var _ pando.Peers = (*Client)(nil)

// Client reaches the agents of hosts by the Endpoint of their records. It keeps and shares
// connections.
type Client struct {
	Reach
	works
	mover
	http   *http.Client
	direct *http.Client // for asks: an instance waits for the answer
}

// Reach is a client's path to the agents of hosts.
type Reach struct {
	Own    pando.HostName                   // the name of this host
	Socket string                           // of this host's agent, used instead of its https endpoint
	TLS    func(pando.HostName) *tls.Config // for https endpoints; nil: they are unreachable
	// Clock times the retries of State and the questions for a sign of life. Nil: there are none.
	Clock pando.Clock
}

// New returns a client. Close ends its idle connections.
func New(r Reach) *Client {
	c := &Client{Reach: r}
	c.works = works{c}
	c.mover.c = c
	t := &http.Transport{
		DialContext:         c.dial,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
	c.http = &http.Client{Transport: t}
	c.direct = &http.Client{Transport: &direct{dial: c.dial, idle: map[string][]*kept{}}}
	return c
}

// Close ends the idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	c.direct.CloseIdleConnections()
	return nil
}

// Marks of host names in a URL that are not addresses: the path of a socket, or a host's name with
// its address. They give each socket and each host its own connections.
const (
	unixSuffix = ".unix"
	tlsSuffix  = ".tls"
)

func (c *Client) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialWaitMax}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if name, ok := strings.CutSuffix(host, unixSuffix); ok {
		path, err := decodePath(name)
		if err != nil {
			return nil, err
		}
		return d.DialContext(ctx, "unix", path)
	}
	if name, ok := strings.CutSuffix(host, tlsSuffix); ok {
		text, err := decodePath(name)
		if err != nil {
			return nil, err
		}
		name, addr, _ := strings.Cut(text, " ")
		t := tls.Dialer{NetDialer: &d, Config: c.TLS(pando.HostName(name))}
		return t.DialContext(ctx, network, addr)
	}
	return d.DialContext(ctx, network, addr)
}

// base turns a host's endpoint into the start of a URL.
func (c *Client) base(h pando.Host) (*url.URL, error) {
	u, err := url.Parse(h.Endpoint)
	switch {
	case err == nil && u.Scheme == "https" && c.Socket != "" && h.Name == c.Own:
		return &url.URL{Scheme: "http", Host: encodePath(c.Socket) + unixSuffix}, nil
	case err == nil && u.Scheme == "unix" && u.Path != "":
		return &url.URL{Scheme: "http", Host: encodePath(u.Path) + unixSuffix}, nil
	case err == nil && u.Scheme == "http" && u.Host != "":
		return &url.URL{Scheme: "http", Host: u.Host}, nil
	case err == nil && u.Scheme == "https" && u.Host != "" && c.TLS != nil:
		return &url.URL{Scheme: "http", Host: encodePath(string(h.Name)+" "+u.Host) + tlsSuffix}, nil
	}
	return nil, fmt.Errorf("%w: host %s has the endpoint %q: want unix:///path or "+
		"https://address:port", pando.ErrInvalid, h.Name, h.Endpoint)
}

func encodePath(p string) string { return fmt.Sprintf("%x", p) }

func decodePath(s string) (string, error) {
	var b []byte
	_, err := fmt.Sscanf(s, "%x", &b)
	return string(b), err
}

// call sends a request to a host. The caller closes the body of the answer.
func (c *Client) call(
	ctx context.Context, h pando.Host, method, path string, query url.Values, body io.Reader,
) (io.ReadCloser, error) {
	return c.callBy(ctx, c.http, h, method, path, query, body)
}

func (c *Client) callBy(ctx context.Context, by *http.Client, h pando.Host, method, path string,
	query url.Values, body io.Reader) (io.ReadCloser, error) {
	u, err := c.base(h)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawQuery = path, query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("ask host %s for %s: %w", h.Name, path, err)
	}
	resp, err := send(ctx, c, by, h, req)
	if err != nil {
		return nil, fmt.Errorf("ask host %s for %s: %w", h.Name, path, outOfReach(ctx, h, err))
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	return nil, fmt.Errorf("ask host %s for %s: %w", h.Name, path, readProblem(resp))
}

// send sends a request to a host, and reports the wait for its answer. It gives up an agent that gives no
// sign of life. The asks of instances have deadlines of their own.
func send(
	ctx context.Context, c *Client, by *http.Client, h pando.Host, r *http.Request,
) (*http.Response, error) {
	if c.Clock == nil || by == c.direct {
		return by.Do(r)
	}
	who := fmt.Sprintf("the agent of %s", h.Name)
	defer pando.Waiting(ctx, c.Clock, who)()
	return lifeline.Request{Client: by, Clock: c.Clock, Who: func() string { return who },
		Sentinel: pando.ErrUnreachable}.Do(r)
}

// outOfReach distinguishes a host that does not answer from a cancelled request.
func outOfReach(ctx context.Context, h pando.Host, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if silent, is := errors.AsType[lifeline.Silence](err); is {
		return silent
	}
	if u := (*url.Error)(nil); errors.As(err, &u) { // its URL has the name of the host in hex
		err = u.Err
	}
	return fmt.Errorf("%w: host %s at %s does not answer: %w",
		pando.ErrUnreachable, h.Name, h.Endpoint, err)
}

// get reads the answer of a host.
func (c *Client) get(
	ctx context.Context, h pando.Host, path string, query url.Values, into any,
) error {
	return c.read(ctx, h, http.MethodGet, path, query, nil, into)
}

func (c *Client) read(
	ctx context.Context, h pando.Host, method, path string, query url.Values, ask io.Reader, into any,
) error {
	return c.readBy(ctx, c.http, h, method, path, query, ask, into)
}

func (c *Client) readBy(ctx context.Context, by *http.Client, h pando.Host, method, path string,
	query url.Values, ask io.Reader, into any) error {
	body, err := c.callBy(ctx, by, h, method, path, query, ask)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := readAnswer(body, hostAnswerMax, into); err != nil {
		return fmt.Errorf("ask host %s for %s: %w", h.Name, path, unreadable(ctx, h, err))
	}
	return nil
}

// Applied returns once the host's steering reflects every record of services up to a store
// revision. An agent of a build before this one reads the first service alone.
func (c *Client) Applied(
	ctx context.Context, h pando.Host, of []pando.ServiceKey, at pando.StoreRevision,
) (missing string, err error) {
	if len(of) == 0 {
		return "", nil
	}
	q := url.Values{"tenant": {string(of[0].Tenant)}, "service": {string(of[0].Name)},
		"at": {strconv.FormatInt(int64(at), 10)}}
	for _, s := range of[1:] {
		q.Add("also", string(s.Tenant)+"/"+string(s.Name))
	}
	var is applied
	err = c.get(ctx, h, "/peer/applied", q, &is)
	return is.Missing, err
}

// Logs streams lines of instances of a service on a host. The stream ends with ctx, or when the
// caller closes it.
func (c *Client) Logs(
	ctx context.Context, h pando.Host, s pando.ServiceKey, i []pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	v := url.Values{
		"tenant": {string(s.Tenant)}, "service": {string(s.Name)},
		"lines": {strconv.Itoa(q.Lines)}, "follow": {strconv.FormatBool(q.Follow)}, "match": {q.Match},
		"since": {"0"},
	}
	if !q.Since.IsZero() {
		v.Set("since", strconv.FormatInt(q.Since.UnixNano(), 10))
	}
	for _, one := range i {
		v.Add("instance", string(one))
	}
	if _, token := access.TokenOf(ctx); !token {
		v.Set("operator", "true")
	}
	ctx, cancel := context.WithCancel(ctx)
	body, err := c.call(ctx, h, http.MethodGet, LogsPath, v, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	return logs.Decode(ending{body, cancel}), nil
}

// ending is the body of an answer that ends with its request.
type ending struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close ends the request first, so that a read that waits returns.
func (e ending) Close() error {
	e.cancel()
	return e.ReadCloser.Close()
}

// Counters returns the counters of the host's steering.
func (c *Client) Counters(
	ctx context.Context, h pando.Host,
) (out []pando.EndpointCounters, err error) {
	return out, c.get(ctx, h, "/peer/counters", nil, &out)
}

// Objects writes a consistent copy of the states of a host to w.
func (c *Client) Objects(ctx context.Context, h pando.Host, w io.Writer) error {
	return c.whole(ctx, h, "/peer/objects", "states", w)
}

// VolumeFiles writes an archive of the volumes of a host to w.
func (c *Client) VolumeFiles(ctx context.Context, h pando.Host, w io.Writer) error {
	return c.whole(ctx, h, VolumeFilesPath, "volumes", w)
}

// whole writes a stream of a host to w. It returns an error for a stream that was cut off.
func (c *Client) whole(ctx context.Context, h pando.Host, path, what string, w io.Writer) error {
	u, err := c.base(h)
	if err != nil {
		return err
	}
	u.Path = path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("ask host %s for its %s: %w", h.Name, what, err)
	}
	resp, err := send(ctx, c, c.http, h, req)
	if err != nil {
		return fmt.Errorf("ask host %s for its %s: %w", h.Name, what, outOfReach(ctx, h, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask host %s for its %s: %w", h.Name, what, readProblem(resp))
	}
	_, err = io.Copy(w, resp.Body)
	if err == nil && resp.Trailer.Get(wholeTrailer) == "" {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("ask host %s for its %s: %w", h.Name, what, outOfReach(ctx, h, err))
	}
	return nil
}

// Losses returns the losses of the host's steering.
func (c *Client) Losses(ctx context.Context, h pando.Host) (out pando.Losses, err error) {
	return out, c.read(ctx, h, http.MethodGet, "/peer/losses", nil, nil, &out)
}

// Usage returns the use of instances of a host.
func (c *Client) Usage(
	ctx context.Context, h pando.Host, s pando.ServiceKey,
) (out []pando.InstanceUsage, err error) {
	return out, c.get(ctx, h, "/peer/usage", url.Values{
		"tenant": {string(s.Tenant)}, "service": {string(s.Name)}}, &out)
}

// StateLog returns the newest commits of a service's main branch.
func (c *Client) StateLog(
	ctx context.Context, h pando.Host, s pando.ServiceKey, max int,
) (out []pando.StateCommit, err error) {
	return out, c.get(ctx, h, "/peer/statelog", url.Values{
		"tenant": {string(s.Tenant)}, "service": {string(s.Name)}, "max": {strconv.Itoa(max)}}, &out)
}
