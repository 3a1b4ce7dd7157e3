// Package probe asks an instance how it is, from its host. It asks once and within its context; how often, and what an
// answer means, is decided by its caller.
package probe

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"pando.run/pando"
)

// Prober implements pando.Prober.
type Prober struct{ client *http.Client }

// New returns a prober. It keeps no connection between two probes: each shows that a new one is accepted.
func New() *Prober {
	return &Prober{client: &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, Proxy: nil},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Probe returns nil when the instance answered as p wants.
func (p *Prober) Probe(ctx context.Context, want pando.Probe, s pando.Sandbox, fallback pando.Port) error {
	port := want.Port
	if port == 0 {
		port = fallback.Target
	}
	at := netip.AddrPortFrom(s.Link().IP4, port).String()
	switch want.Kind {
	case pando.ProbeTCP:
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return fmt.Errorf("probe tcp %d of %s: %w", port, s.Instance(), err)
		}
		return c.Close()
	case pando.ProbeHTTP:
		if err := p.get(ctx, "http://"+at+want.Path); err != nil {
			return fmt.Errorf("probe http GET :%d%s of %s: %w", port, want.Path, s.Instance(), err)
		}
		return nil
	case pando.ProbeExec:
		code, output, err := s.Exec(ctx, want.Command)
		if err != nil {
			return fmt.Errorf("probe exec %s in %s: %w", strings.Join(want.Command, " "), s.Instance(), err)
		}
		if code != 0 {
			first, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
			return fmt.Errorf("probe exec %s in %s: it exited with %d: %q", strings.Join(want.Command, " "), s.Instance(), code, first)
		}
		return nil
	}
	return fmt.Errorf("%w: an instance with an explicit probe tells by itself; it cannot be asked", pando.ErrInvalid)
}

// get asks for one page and reads no more of it than its first line.
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
	line, _, _ := bufio.NewReaderSize(a.Body, 256).ReadLine()
	return fmt.Errorf("it answered %s: %q", a.Status, line)
}
