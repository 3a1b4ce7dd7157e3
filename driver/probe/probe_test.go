package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// loopback is a sandbox whose instance is this test itself.
type loopback struct{ pando.Sandbox }

func (loopback) Instance() pando.InstanceID { return "web-1" }
func (loopback) Link() pando.Link           { return pando.Link{IP4: netip.MustParseAddr("127.0.0.1")} }

func ask(t *testing.T, p pando.Probe, port uint16) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	return New().Probe(ctx, p, loopback{}, pando.Port{Target: port})
}

func TestHTTP(t *testing.T) {
	pages := http.NewServeMux()
	pages.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	pages.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/sick", http.StatusFound) })
	pages.HandleFunc("/sick", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no database\nmore", http.StatusServiceUnavailable)
	})
	pages.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s := httptest.NewServer(pages)
	defer s.Close()
	port := netip.MustParseAddrPort(s.Listener.Addr().String()).Port()
	for _, c := range []struct{ path, want string }{
		{"/ok", ""}, {"/moved", ""}, {"/sick", `503 Service Unavailable: "no database"`}, {"/slow", "deadline exceeded"},
	} {
		err := ask(t, pando.Probe{Kind: pando.ProbeHTTP, Path: c.path}, port)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("GET %s: %v, want %q", c.path, err, c.want)
		}
	}
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	if err := ask(t, pando.Probe{Kind: pando.ProbeTCP}, port); err != nil {
		t.Error(err)
	}
	l.Close()
	if err := ask(t, pando.Probe{Kind: pando.ProbeTCP}, port); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody listens, but the probe says %v", err)
	}
}
