// Package probe probes the health of an instance from its host. It makes one request within its
// context. The caller decides how often to probe and how to judge an answer.
package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
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
			MaxResponseHeaderBytes: headerBytesMax},
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
	at := netip.AddrPortFrom(s.Link().IP4, port).String()
	switch want.Kind {
	case pando.ProbeStarted:
		return nil // a sandbox exists only while its program runs
	case pando.ProbeTCP:
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return fmt.Errorf("probe tcp %d of %s: %w", port, s.Instance(), told(ctx, err))
		}
		return c.Close()
	case pando.ProbeHTTP:
		if err := p.get(ctx, "http://"+at+want.Path); err != nil {
			return fmt.Errorf("probe http GET :%d%s of %s: %w",
				port, want.Path, s.Instance(), told(ctx, err))
		}
		return nil
	case pando.ProbeGRPC:
		if err := check(ctx, at); err != nil {
			return fmt.Errorf("probe grpc %d of %s: %w", port, s.Instance(), told(ctx, err))
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

// get requests one page. It reads at most the first line, and only for the error.
func (p *Prober) get(ctx context.Context, url string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
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
	return fmt.Errorf("it answered %s: %q", a.Status, line)
}

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
		text = "no answer in time (`timeout` in the spec): " + text
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
