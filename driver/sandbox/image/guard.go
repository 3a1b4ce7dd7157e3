package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"

	"pando.run/pando"
)

// reach is how far inside the network an address lies.
type reach int

const (
	outside reach = iota // on the internet
	private              // of a private network, of the cluster or of one of its hosts
	onHost               // this host alone: loopback, and addresses of one link
)

// Ranges that no method of netip.Addr names.
var (
	privateRanges = prefixes("100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4",
		"64:ff9b:1::/48", "2001::/32", "fec0::/10")
	localRanges = prefixes("0.0.0.0/8")
	nat64       = netip.MustParsePrefix("64:ff9b::/96") // an IPv4 address in the last 4 bytes
	sixToFour   = netip.MustParsePrefix("2002::/16")    // an IPv4 address in bytes 2 to 5
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func within(a netip.Addr, ranges ...netip.Prefix) bool {
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// reachOf returns how far inside an address lies by its range alone. IPv6 addresses that lead to an
// IPv4 address count as that one.
func reachOf(a netip.Addr) reach {
	a = a.Unmap().WithZone("")
	if b := a.As16(); nat64.Contains(a) {
		a = netip.AddrFrom4([4]byte(b[12:16]))
	} else if sixToFour.Contains(a) {
		a = netip.AddrFrom4([4]byte(b[2:6]))
	}
	switch {
	case a.IsLoopback(), a.IsUnspecified(), a.IsLinkLocalUnicast(), a.IsMulticast(),
		within(a, localRanges...):
		return onHost
	case a.IsPrivate(), within(a, privateRanges...),
		within(a, pando.VIPs4, pando.Instances4):
		return private
	}
	return outside
}

// reachOf adds the addresses of this host and of the cluster's hosts.
func (s *vault) reachOf(a netip.Addr) reach {
	if s.level != nil {
		return s.level(a)
	}
	far := reachOf(a)
	if far == outside && (ownAddress(a) || s.Member != nil && s.Member(a.Unmap())) {
		return private
	}
	return far
}

func ownAddress(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true // nothing is known to be outside
	}
	for _, own := range all {
		if p, err := netip.ParsePrefix(own.String()); err == nil && p.Addr().Unmap() == a.Unmap() {
			return true
		}
	}
	return false
}

// Refusals of a guard. They say the same whatever is at the address.
var (
	errInside = errors.New("its address is inside the network")
	errPlain  = errors.New("it does not speak TLS")
)

// guard carries all requests to one registry, and those to which the registry leads: its redirects
// and its token service. It judges each connection by the address that a name has led to.
//
// A registry that is admitted may be anywhere. What it leads to may be as far inside as the registry
// itself, so a registry outside leads nowhere inside.
type guard struct {
	host     string // of the registry
	admitted bool
	rules    rules
	levels   func(netip.Addr) reach

	direct, proxied http.RoundTripper

	mu    sync.Mutex
	bare  bool  // it is on this host and has no TLS: HTTP, and without credentials
	reach reach // of the registry's address
}

func newGuard(s *vault, host string, admitted bool, r rules, c *tls.Config) *guard {
	g := &guard{host: host, admitted: admitted, rules: r, levels: s.reachOf}
	base := &http.Transport{
		TLSClientConfig: c, ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialWaitMax,
		ResponseHeaderTimeout: answerWaitMax, DisableCompression: true, IdleConnTimeout: answerWaitMax,
		MaxIdleConnsPerHost: atOnce,
	}
	direct := base.Clone()
	direct.DialContext = g.dial
	base.Proxy = http.ProxyFromEnvironment
	base.DialContext = (&net.Dialer{Timeout: dialWaitMax}).DialContext
	g.direct, g.proxied = direct, base
	return g
}

// plain reports whether a host speaks HTTP without TLS.
func (g *guard) plain(host string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rules[host].plain || g.bare && host == g.host
}

// RoundTrip implements http.RoundTripper. A host that speaks HTTP gets no TLS hello, so no
// connection ever falls back from TLS.
func (g *guard) RoundTrip(q *http.Request) (*http.Response, error) {
	switch plain := g.plain(q.URL.Host); {
	case q.URL.Scheme == "https" && plain:
		q = q.Clone(q.Context())
		q.URL.Scheme = "http"
	case q.URL.Scheme != "https" && !plain:
		return nil, closed(q, errPlain)
	}
	via, err := http.ProxyFromEnvironment(q)
	if err != nil {
		return nil, closed(q, err)
	}
	if via == nil {
		return g.direct.RoundTrip(q)
	}
	// The proxy of this host's owner finds the address, and has rules of its own. Addresses that this
	// host can see inside are refused all the same.
	if err := g.checkName(q.Context(), q.URL); err != nil {
		return nil, closed(q, err)
	}
	return g.proxied.RoundTrip(q)
}

func closed(q *http.Request, err error) error {
	if q.Body != nil {
		q.Body.Close()
	}
	return err
}

// dial connects to an address that the guard admits.
func (g *guard) dial(ctx context.Context, network, at string) (net.Conn, error) {
	own := g.own(at)
	d := net.Dialer{
		Timeout: dialWaitMax,
		ControlContext: func(_ context.Context, _, found string, _ syscall.RawConn) error {
			a, err := netip.ParseAddrPort(found)
			if err != nil {
				return err
			}
			return g.check(own, a.Addr())
		},
	}
	return d.DialContext(ctx, network, at)
}

// own reports whether HOST:PORT is the registry.
func (g *guard) own(at string) bool {
	host, port, err := net.SplitHostPort(at)
	name, want, _ := splitPort(g.host)
	return err == nil && strings.EqualFold(host, name) &&
		(port == want || want == "" && (port == "443" || port == "80"))
}

// speakHTTP makes the guard speak HTTP to the registry. A dial of the trial before may still go on.
func (g *guard) speakHTTP() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bare = true
}

// check returns an error for an address that the guard does not admit.
func (g *guard) check(own bool, a netip.Addr) error {
	far := g.levels(a)
	g.mu.Lock()
	defer g.mu.Unlock()
	if own && g.bare && !a.Unmap().IsLoopback() {
		return errPlain
	}
	if own && g.admitted {
		g.reach = max(g.reach, far)
	}
	if far > g.reach {
		return errInside
	}
	return nil
}

// checkName returns an error if a name leads this host to an address that the guard does not admit.
// The proxy may know names that this host does not.
func (g *guard) checkName(ctx context.Context, u *url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, dialWaitMax)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return nil
	}
	for _, a := range found {
		if err := g.check(u.Host == g.host, a); err != nil {
			return err
		}
	}
	return nil
}

// lacksTLS reports whether the registry answers a TLS hello with something else. Nothing secret is
// sent.
func (g *guard) lacksTLS(ctx context.Context) (bool, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+g.host+"/v2/", nil)
	if err != nil {
		return false, final(err)
	}
	resp, err := g.RoundTrip(q)
	if err == nil {
		resp.Body.Close()
	}
	lacks := errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, new(tls.RecordHeaderError))
	return lacks, nil
}

// splitPort returns the host of HOST[:PORT], without brackets.
func splitPort(at string) (host, port string, err error) {
	if host, port, err = net.SplitHostPort(at); err != nil {
		host, port = strings.Trim(at, "[]"), ""
	}
	return host, port, err
}

// onThisHost reports whether a registry's name is this host's.
func onThisHost(registry string) bool {
	host, _, _ := splitPort(registry)
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}

// refused describes a registry that a token may not use. It says the same for a name without an
// address: the names inside are not for everyone.
func (r *registry) refused() error {
	where := ""
	if r.Registries != "" {
		where = fmt.Sprintf(", or adds the line `%s inside` to %s there", r.host(), r.Registries)
	}
	return final(fmt.Errorf("%w: it has no address outside of the network of the server's host, or it "+
		"leads inside; an operator deploys from it%s", pando.ErrForbidden, where))
}
