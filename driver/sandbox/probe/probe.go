// Package probe probes the health of an instance from its host. It makes one request within its
// context. The caller decides how often to probe and how to judge an answer.
package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Bounds of the bytes read from an answer, and of the bytes reported.
const (
	headerBytesMax = 64 << 10
	lineBytesMax   = 256
	toldBytesMax   = 500
)

// Prober implements pando.Prober.
type Prober struct{ client *http.Client }

// New returns a prober. It keeps no connection between two probes: each proves that the instance
// accepts a new one.
func New() *Prober {
	return &Prober{client: &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, Proxy: nil,
			MaxResponseHeaderBytes: headerBytesMax, DialTLSContext: dialTLS},
		// A redirect is an answer. Its target may be another machine and proves nothing about this
		// instance.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Probe returns nil when the instance answered as the probe wants, else an error with its answer.
func (p *Prober) Probe(
	ctx context.Context, want pando.Probe, s pando.Sandbox, fallback pando.Port,
) error {
	port := want.Port
	if port == 0 {
		port = fallback.Target
	}
	var err error
	switch want.Kind {
	case pando.ProbeStarted:
		return nil // a sandbox exists only while its program runs
	case pando.ProbePing:
		if err := answersPing(ctx, addresses(s.Link())); err != nil {
			return fmt.Errorf("probe ping of %s: %w", s.Instance(), told(ctx, err))
		}
		return nil
	case pando.ProbeTCP, pando.ProbeHTTP, pando.ProbeGRPC, pando.ProbeUDP:
		for _, a := range addresses(s.Link()) {
			// A program may listen by IPv6 alone.
			err = p.dial(ctx, want, netip.AddrPortFrom(a, port).String())
			if err == nil || !errors.Is(err, unix.ECONNREFUSED) {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("probe %s of %s: %w", words(want, port), s.Instance(), told(ctx, err))
		}
		return nil
	case pando.ProbeExec:
		code, output, err := s.Exec(ctx, want.Command)
		if err == nil && code != 0 {
			first, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
			err = fmt.Errorf("it exited with %d: %q", code, first)
		}
		if err != nil {
			return fmt.Errorf("probe exec %s in %s: %w", strings.Join(want.Command, " "), s.Instance(),
				told(ctx, err))
		}
		return nil
	}
	return fmt.Errorf("%w: an instance with an explicit probe reports by itself and cannot be probed",
		pando.ErrInvalid)
}

// addresses returns the addresses at which an instance may listen. One with the network of its host
// listens at the host's own.
func addresses(l pando.Link) (out []netip.Addr) {
	all := []netip.Addr{l.IP4, l.IP6}
	if l.OfHost {
		all = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	for _, a := range all {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// dial makes one probe at an address.
func (p *Prober) dial(ctx context.Context, want pando.Probe, at string) error {
	switch want.Kind {
	case pando.ProbeHTTP:
		return p.get(ctx, want, at)
	case pando.ProbeUDP:
		return takes(ctx, at)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err == nil {
		err = c.Close()
	}
	if err == nil && want.Kind == pando.ProbeGRPC {
		err = check(ctx, at)
	}
	return err
}

// words returns a probe in the words of a spec.
func words(p pando.Probe, port uint16) string {
	if p.Kind == pando.ProbeHTTP {
		return fmt.Sprintf("%s GET :%d%s", scheme(p), port, p.Path)
	}
	return fmt.Sprintf("%s %d", p.Kind, port)
}

// busy is the answer of a program that wants to be asked later.
type busy struct{ error }

func (b busy) Unwrap() []error { return []error{b.error, pando.ErrBusy} }

func scheme(p pando.Probe) string {
	if p.TLS {
		return "https"
	}
	return "http"
}

// hostOf is the key of the host name that a probe sends, in its context.
type hostOf struct{}

// dialTLS connects by TLS, with any certificate: instances have addresses and no names. A server with
// several certificates chooses by the host name of the probe.
func dialTLS(ctx context.Context, network, at string) (net.Conn, error) {
	name, _ := ctx.Value(hostOf{}).(string)
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	return (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: name}}).
		DialContext(ctx, network, at)
}

// get requests one page. It reads at most the first line, and only for the error.
func (p *Prober) get(ctx context.Context, want pando.Probe, at string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme(want)+"://"+at+want.Path, nil)
	if err != nil {
		return err
	}
	for _, h := range want.Headers {
		name, value, _ := strings.Cut(h, ": ")
		if strings.EqualFold(name, "Host") {
			q.Host = value
			q = q.WithContext(context.WithValue(q.Context(), hostOf{}, value))
		} else {
			q.Header.Add(name, value)
		}
	}
	a, err := p.client.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode >= 200 && a.StatusCode < 400 {
		return nil
	}
	line, _, _ := bufio.NewReaderSize(a.Body, lineBytesMax).ReadLine()
	err = fmt.Errorf("it answered %s: %q", a.Status, line)
	if slices.Contains(hostRefusals, a.StatusCode) && q.Host == at {
		err = fmt.Errorf("%w (it got Host: %s; add -H 'Host: NAME' to the probe if the program checks "+
			"the host)", err, at)
	}
	if a.StatusCode == http.StatusServiceUnavailable || a.StatusCode == http.StatusTooManyRequests {
		err = busy{err}
	}
	return err
}

// hostRefusals are the answers of servers that check the host: Django, Rails, Vite, proxies.
var hostRefusals = []int{http.StatusBadRequest, http.StatusForbidden, http.StatusMisdirectedRequest}

// answer is an error with a text that is fit for a record: short, and without terminal control
// characters.
type answer struct {
	text  string
	cause error
}

func (a answer) Error() string { return a.text }
func (a answer) Unwrap() error { return a.cause }

// told adds a hint for the reader to an error.
func told(ctx context.Context, err error) error {
	text := err.Error()
	switch {
	// The dialler's own deadline may fire a moment earlier.
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		text, err = "no answer in time (`timeout` in the spec): "+text, busy{err}
	case errors.Is(err, unix.ECONNREFUSED):
		text += " (nothing listens there; the program has to listen on " +
			"every address, not on 127.0.0.1 alone)"
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
	if len(text) > toldBytesMax {
		text = strings.ToValidUTF8(text[:toldBytesMax], "") + "…"
	}
	return answer{text, err}
}
