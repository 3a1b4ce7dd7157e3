package image

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pando.run/pando"
)

func TestAddressesInsideAreKnown(t *testing.T) {
	for text, want := range map[string]reach{
		"9.9.9.9": outside, "2620:fe::fe": outside, "::ffff:9.9.9.9": outside, "172.32.0.1": outside,
		"10.1.2.3": private, "172.16.0.1": private, "192.168.1.1": private, "100.64.0.1": private,
		"fd00::1": private, "::ffff:10.0.0.1": private, "64:ff9b::a00:1": private,
		"2002:a00:1::": private, "198.18.0.1": private, "255.255.255.255": private,
		pando.VIPs4.Addr().Next().String():      private,
		pando.Instances4.Addr().Next().String(): private,
		"127.0.0.1":                             onHost, "127.9.9.9": onHost, "::1": onHost, "0.0.0.0": onHost, "::": onHost,
		"0.1.2.3": onHost, "169.254.169.254": onHost, "fe80::1": onHost, "fe80::1%lo": onHost,
		"224.0.0.1": onHost, "64:ff9b::7f00:1": onHost, "2002:7f00:1::": onHost, "::ffff:127.0.0.1": onHost,
	} {
		if got := reachOf(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is %d inside, want %d", text, got, want)
		}
	}
}

func TestAddressesOfTheClusterAreInside(t *testing.T) {
	s := &vault{Config: Config{Member: func(a netip.Addr) bool { return a == netip.MustParseAddr("9.9.9.9") }}}
	if s.reachOf(netip.MustParseAddr("9.9.9.9")) != private {
		t.Error("a host of the cluster is outside")
	}
	if s.reachOf(netip.MustParseAddr("9.9.9.10")) != outside {
		t.Error("another host is inside")
	}
}

// counted is a listener that counts its connections and answers 404.
func counted(t *testing.T) (at string, hits *atomic.Int64) {
	t.Helper()
	hits = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ConnState = func(_ net.Conn, c http.ConnState) {
		if c == http.StateNew {
			hits.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), hits
}

// A token learns the same about an open port, a closed one, and a name that does not exist.
func TestATokenLearnsNothingOfTheInside(t *testing.T) {
	clean(t)
	s := open(t)
	at, hits := counted(t)
	closing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut := closing.Addr().String()
	closing.Close()
	_, port, _ := net.SplitHostPort(at)
	texts := map[string]bool{}
	for _, host := range []string{at, shut, "localhost:" + port, "0.0.0.0:" + port, "10.255.255.1:" + port,
		"nowhere.invalid:" + port} {
		_, _, err := s.Resolve(t.Context(), "", pando.Image{Reference: host + "/x"})
		if !errors.Is(err, pando.ErrForbidden) {
			t.Fatalf("%s: %v", host, err)
		}
		texts[strings.ReplaceAll(err.Error(), host, "HOST")] = true
	}
	if len(texts) != 1 {
		t.Errorf("a token can tell them apart: %v", texts)
	}
	if n := hits.Load(); n > 0 {
		t.Errorf("%d connections to the inside", n)
	}
}

func TestAnOwnersListAdmitsARegistryForTokens(t *testing.T) {
	clean(t)
	s, r := open(t), served(t, nil)
	reference, _ := push(t, r, "v1")
	s.Registries = listed(t, "# ours\n"+strings.TrimPrefix(r.URL, "http://")+" inside http\n")
	i, _, err := s.Resolve(t.Context(), "", pando.Image{Reference: reference})
	if err != nil || !i.Inside {
		t.Fatalf("%+v, %v", i, err)
	}
	agent := open(t) // another host, without the list: it takes the word of the server
	agent.Registries = listed(t, strings.TrimPrefix(r.URL, "http://")+" http\n")
	if err := agent.Pull(t.Context(), i, nil); err != nil {
		t.Error(err)
	}
	i.Inside = false
	if err := open(t).Pull(t.Context(), i, nil); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a pull without that word: %v", err)
	}
}

// leading is a registry outside that leads to an address inside by a redirect or a token service.
func leading(t *testing.T, answer func(w http.ResponseWriter)) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { answer(w) }))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestARegistryOutsideLeadsNowhereInside(t *testing.T) {
	clean(t)
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var hits atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			hits.Add(1)
			c.Close()
		}
	}()
	target := "https://" + l.Addr().String() + "/secret"
	for kind, answer := range map[string]func(http.ResponseWriter){
		"redirect": func(w http.ResponseWriter) {
			w.Header().Set("Location", target)
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"token service": func(w http.ResponseWriter) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="x"`, target))
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		s := open(t)
		s.level = func(a netip.Addr) reach {
			if a == netip.MustParseAddr("127.0.0.1") {
				return outside
			}
			return onHost
		}
		for _, by := range []bool{false, true} { // an operator's word is about the registry alone
			i := pando.Image{Reference: leading(t, answer) + "/x", Inside: by}
			_, _, err := s.Resolve(t.Context(), "", i)
			if err == nil || kind == "redirect" && !errors.Is(err, pando.ErrForbidden) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
	if n := hits.Load(); n > 0 {
		t.Errorf("%d connections to the inside", n)
	}
}

// withPassword writes credentials for a registry, and returns what a request with them has.
func withPassword(t *testing.T, host string) {
	t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	dir := filepath.Join(os.Getenv("HOME"), ".docker")
	err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"),
		fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, auth), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

// 0.0.0.0 leads to this host, and its name is not one of this host: it stands for an address of
// another machine.
func TestAPasswordNeverGoesWithoutTLS(t *testing.T) {
	clean(t)
	var requests, passwords atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		requests.Add(1)
		if q.Header.Get("Authorization") != "" {
			passwords.Add(1)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="shop"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	plain := httptest.NewServer(h)
	defer plain.Close()
	sealed := httptest.NewUnstartedServer(h)
	sealed.Config.ErrorLog = log.New(io.Discard, "", 0)
	sealed.StartTLS()
	defer sealed.Close()
	_, port, _ := net.SplitHostPort(plain.Listener.Addr().String())
	elsewhere := "0.0.0.0:" + port
	for host, want := range map[string]string{
		elsewhere:                       "does not speak TLS",
		plain.Listener.Addr().String():  "http` is a line of",
		sealed.Listener.Addr().String(): "/ca.crt",
	} {
		s := open(t)
		s.Certificates = []string{"/etc/docker/certs.d"}
		withPassword(t, host)
		_, _, err := s.Resolve(t.Context(), "", inside(host+"/x"))
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, pando.ErrUnavailable) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if n := passwords.Load(); n > 0 {
		t.Errorf("%d requests had a password", n)
	}
	s := open(t)
	s.Registries = listed(t, elsewhere+" http")
	withPassword(t, elsewhere)
	if _, _, err := s.Resolve(t.Context(), "", inside(elsewhere+"/x")); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a wrong password: %v", err)
	}
	if passwords.Load() == 0 {
		t.Error("no password went to a registry that the owner lists")
	}
}

func TestAnAuthorityOfOneRegistryStandsInItsFolder(t *testing.T) {
	clean(t)
	s := open(t)
	r := httptest.NewTLSServer(http.NotFoundHandler())
	defer r.Close()
	host, certs := r.Listener.Addr().String(), t.TempDir()
	file := filepath.Join(certs, host, "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	s.Certificates = []string{certs}
	if _, _, err := s.Resolve(t.Context(), "", inside(host+"/x")); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("with its authority: %v", err)
	}
}

func TestTheListOfRegistriesIsReadStrictly(t *testing.T) {
	good, err := readRules(listed(t, "a.example:5000 inside\n\n10.0.0.7 http inside # ours\na.example:5000 http"))
	if err != nil || good["a.example:5000"] != (rule{true, true}) || good["10.0.0.7"] != (rule{true, true}) {
		t.Errorf("%v, %v", good, err)
	}
	for _, text := range []string{"a.example", "a.example insde", "a.example/shop inside", "http://a inside"} {
		if _, err := readRules(listed(t, "\n"+text)); !errors.Is(err, pando.ErrInvalid) ||
			!strings.Contains(err.Error(), ":2:") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if none, err := readRules(filepath.Join(t.TempDir(), "none")); err != nil || len(none) > 0 {
		t.Errorf("a missing file: %v, %v", none, err)
	}
}
