package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// loopback is a sandbox with this test as its instance.
type loopback struct{ pando.Sandbox }

func (loopback) Instance() pando.InstanceID { return "web-1" }
func (loopback) Link() pando.Link {
	return pando.Link{IP4: netip.MustParseAddr("127.0.0.1")}
}

// silence is in the error of a program that does not answer.
const silence = "no answer in time"

// The limits of a probe: of a program that answers, on a busy machine, and of a silent one.
const (
	patience = 20 * time.Second
	brief    = 500 * time.Millisecond
)

func ask(t *testing.T, p pando.Probe, port uint16, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return New().Probe(ctx, p, loopback{}, pando.Port{Target: port})
}

func TestHTTP(t *testing.T) {
	pages := http.NewServeMux()
	pages.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	pages.HandleFunc("/moved",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/sick", http.StatusFound) })
	pages.HandleFunc("/sick", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no database\nmore", http.StatusServiceUnavailable)
	})
	pages.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	pages.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	pages.HandleFunc("/sick-endless", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(strings.Repeat("\x1b[2J", 1000))); err != nil {
				return
			}
		}
	})
	pages.HandleFunc("/long-header",
		func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) })
	pages.HandleFunc("/trickle", func(w http.ResponseWriter, r *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		for _, b := range []byte("HTTP/1.1 200 OK\r\nX: ") {
			_, _ = c.Write([]byte{b})
		}
		_, _ = c.Read(make([]byte, 1)) // until the prober hangs up
	})
	pages.HandleFunc("/nonsense", func(w http.ResponseWriter, _ *http.Request) {
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = c.Write(
				[]byte("\x1b]0;title\x07 220 mail.example.org ESMTP " + strings.Repeat("y", 5000) + "\r\n"))
			c.Close()
		}
	})
	s := httptest.NewServer(pages)
	defer s.Close()
	port := netip.MustParseAddrPort(s.Listener.Addr().String()).Port()
	for _, c := range []struct{ path, want string }{
		{"/ok", ""}, {"/moved", ""}, {"/endless", ""},
		{"/sick", `503 Service Unavailable: "no database"`}, {"/slow", silence},
		{"/trickle", silence}, {"/nowhere", "404 Not Found"},
		{"/sick-endless", "500 Internal Server Error"}, {"/long-header", "header"},
		{"/nonsense", "malformed HTTP"},
	} {
		limit := patience
		if c.want == silence {
			limit = brief
		}
		err := ask(t, pando.Probe{Kind: pando.ProbeHTTP, Path: c.path}, port, limit)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("GET %s: %v, want %q", c.path, err, c.want)
		}
		if err != nil &&
			(len(err.Error()) > 2*toldBytesMax || strings.ContainsAny(err.Error(), "\x1b\x07\n")) {
			t.Errorf("GET %s: the report of its answer has %d bytes: %.100q", c.path, len(err.Error()), err)
		}
	}
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	if err := ask(t, pando.Probe{Kind: pando.ProbeTCP}, port, patience); err != nil {
		t.Error(err)
	}
	l.Close()
	if err := ask(t, pando.Probe{Kind: pando.ProbeTCP}, port, patience); err == nil ||
		!strings.Contains(err.Error(), "refused") || !errors.Is(err, unix.ECONNREFUSED) ||
		!strings.Contains(err.Error(), "127.0.0.1 alone") {
		t.Errorf("no process listens, but the probe returns %v", err)
	}
}

func TestExplicitCannotBeAsked(t *testing.T) {
	if err := ask(t, pando.Probe{}, 1, patience); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// A full backlog accepts no connection: the probe ends with its deadline.
func TestTCPOfOneThatDoesNotAccept(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(at.(*unix.SockaddrInet4).Port)
	for range 5 { // fill the backlog
		if err = ask(t, pando.Probe{Kind: pando.ProbeTCP}, port, brief); err != nil {
			break
		}
		c, derr := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))),
			brief)
		if derr == nil {
			defer c.Close()
		}
	}
	if err == nil || !strings.Contains(err.Error(), silence) {
		t.Errorf("got %v", err)
	}
}

// both is a sandbox with two addresses.
type both struct {
	loopback
	ofHost bool
}

func (b both) Link() pando.Link {
	if b.ofHost {
		return pando.Link{IP4: netip.MustParseAddr("192.0.2.7"), OfHost: true}
	}
	return pando.Link{IP4: netip.MustParseAddr("127.0.0.1"), IP6: netip.IPv6Loopback()}
}

// A program may listen by IPv6 alone, or in the network of its host.
func TestAProgramThatListensElsewhereIsReady(t *testing.T) {
	for network, box := range map[string]both{
		"tcp6": {}, "tcp4": {}, "tcp4 of the host": {ofHost: true}, "tcp6 of the host": {ofHost: true},
	} {
		at := "[::1]:0"
		if strings.HasPrefix(network, "tcp4") {
			at = "127.0.0.1:0"
		}
		l, err := net.Listen(network[:4], at)
		if err != nil {
			t.Skip("needs IPv6 on the loopback device: ", err)
		}
		s := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
		go func() { _ = s.Serve(l) }()
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err = New().Probe(ctx, pando.Probe{Kind: pando.ProbeTCP, Port: port}, box, pando.Port{})
		if err != nil {
			t.Errorf("tcp, %s: %v", network, err)
		}
		page := pando.Probe{Kind: pando.ProbeHTTP, Port: port, Path: "/"}
		err = New().Probe(ctx, page, box, pando.Port{})
		if err == nil || !strings.Contains(err.Error(), "it answered 404") {
			t.Errorf("http, %s: %v", network, err)
		}
		cancel()
		s.Close()
	}
}

func TestABusyAnswerIsNoDeath(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/later":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/never":
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer s.Close()
	port := netip.MustParseAddrPort(s.Listener.Addr().String()).Port()
	for path, want := range map[string]bool{"/later": true, "/never": true, "/broken": false} {
		limit := patience
		if path == "/never" {
			limit = brief
		}
		err := ask(t, pando.Probe{Kind: pando.ProbeHTTP, Path: path}, port, limit)
		if err == nil || errors.Is(err, pando.ErrBusy) != want {
			t.Errorf("%s: %v, busy %v", path, err, !want)
		}
	}
	s.Close()
	err := ask(t, pando.Probe{Kind: pando.ProbeTCP}, port, patience)
	if err == nil || errors.Is(err, pando.ErrBusy) {
		t.Errorf("a closed port: %v", err)
	}
}

// A probe by HTTP sends the host and the headers of its spec, by TLS if it says so. A server that
// refuses the instance's address as a host gets named with the cure.
func TestHTTPWithHeadersAndTLS(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Host != "example.org" && !strings.HasPrefix(r.Host, "localhost:"):
			w.WriteHeader(http.StatusBadRequest)
		case r.TLS != nil && r.TLS.ServerName != strings.Split(r.Host, ":")[0]:
			w.WriteHeader(http.StatusMisdirectedRequest)
		case r.URL.RawQuery == "token" && r.Header.Get("X-Token") != "a b":
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	plain, secure := httptest.NewServer(page), httptest.NewTLSServer(page)
	defer plain.Close()
	defer secure.Close()
	for _, c := range []struct {
		at   *httptest.Server
		want pando.Probe
		err  string
	}{
		{plain, pando.Probe{Headers: []string{"host: example.org"}}, ""},
		{plain, pando.Probe{}, "add -H 'Host: NAME' to the probe"},
		{plain, pando.Probe{Path: "/?token", Headers: []string{"Host: example.org"}}, "401"},
		{plain, pando.Probe{Path: "/?token", Headers: []string{"Host: example.org", "X-Token: a b"}}, ""},
		{secure, pando.Probe{TLS: true, Headers: []string{"Host: example.org"}}, ""},
		{secure, pando.Probe{TLS: true, Headers: []string{"Host: localhost:1"}}, ""},
		{secure, pando.Probe{Headers: []string{"Host: example.org"}}, "probe http GET"},
		{plain, pando.Probe{TLS: true}, "probe https GET"},
	} {
		_, port, _ := net.SplitHostPort(c.at.Listener.Addr().String())
		n, _ := strconv.ParseUint(port, 10, 16)
		c.want.Kind = pando.ProbeHTTP
		if c.want.Path == "" {
			c.want.Path = "/"
		}
		err := ask(t, c.want, uint16(n), patience)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: %v, want %q", c.want, err, c.err)
		}
	}
}
