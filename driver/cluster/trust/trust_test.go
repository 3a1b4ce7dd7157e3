package trust

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
)

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTheAuthorityIsMadeOnceAndForItsOwnerAlone(t *testing.T) {
	dir := t.TempDir()
	var all [8]*Authority
	var wg sync.WaitGroup
	for n := range all {
		wg.Go(func() { all[n], _ = OpenAuthority(dir, time.Now()) })
	}
	wg.Wait()
	for _, a := range all {
		if a == nil || !a.Certificate().Equal(all[0].Certificate()) {
			t.Fatal("two that came at once have two authorities")
		}
	}
	st, err := os.Stat(filepath.Join(dir, "authority.pem"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want mode 0600", st.Mode(), err)
	}
}

func TestTokens(t *testing.T) {
	a, b := authority(t), authority(t)
	now := time.Now()
	good, err := a.Token(now.Add(time.Hour), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Check(good, now); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := a.Check(good, now.Add(2*time.Hour)); !errors.Is(err, pando.ErrForbidden) ||
		!strings.Contains(err.Error(), "ended at") {
		t.Errorf("an old one: %v", err)
	}
	if err := b.Check(good, now); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("another cluster's: %v", err)
	}
	for n := len(tokenPrefix); n < len(good); n++ { // every letter counts
		other := good[:n] + map[bool]string{true: "b", false: "a"}[good[n] == 'a'] + good[n+1:]
		if a.Check(other, now) == nil {
			t.Errorf("letter %d does not count", n)
		}
	}
	for _, bad := range []string{"", "pando1", good[:len(good)-1], good + "a", "x" + good} {
		if err := a.Check(bad, now); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestATokenAdmitsAsManyHostsAsItSays(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	open := func() *Authority {
		a, err := OpenAuthority(dir, now)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	token := func(until time.Time, uses int) string {
		text, err := open().Token(until, uses)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	two := token(now.Add(time.Hour).Truncate(time.Second), 2)
	first, err := open().Use(two, now)
	if err != nil || first.Most != 2 || first.Before != 0 || first.Until.After(now.Add(time.Hour)) {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := open().Use(two, now); err != nil || again != first {
		t.Errorf("the same token at another server: %+v, %v; want %+v", again, err, first)
	}
	if other, err := open().Use(token(now.Add(time.Hour), 2), now); err != nil ||
		other.Name == first.Name {
		t.Errorf("another token: %+v, %v", other, err)
	}
	if _, err := open().Use(two, now.Add(2*time.Hour)); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("an ended token: %v", err)
	}
	// An earlier build counted in a file.
	file := filepath.Join(dir, "tokens.json")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{%q:{"uses":2,"until":%q}}`, first.Name,
		first.Until.Format(time.RFC3339)), 0o600); err != nil {
		t.Fatal(err)
	}
	if used, err := open().Use(two, now); err != nil || used.Before != 2 {
		t.Errorf("after an upgrade: %+v, %v", used, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open().Use(two, now); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("an unreadable count: %v", err)
	}
	for _, uses := range []int{0, -1, UsesMax + 1} {
		if _, err := open().Token(now.Add(time.Hour), uses); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("a token for %d hosts: %v", uses, err)
		}
	}
}

func TestRenewalsKeepTheKeyAndTheName(t *testing.T) {
	a := authority(t)
	for _, h := range []pando.HostName{"", "h1"} {
		i, err := a.Identity(h, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		key, ends, name := i.PublicKey(), i.Ends(), i.own.Load().Leaf.Subject.CommonName
		if err := a.Renew(i, time.Now().Add(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if !i.Ends().After(ends) || i.PublicKey() != key || i.own.Load().Leaf.Subject.CommonName != name {
			t.Errorf("%q: ends %s then %s, named %s", h, ends, i.Ends(), name)
		}
	}
}

// meet lets a client and a server shake hands. Each returns its own error.
func meet(t *testing.T, client, server *tls.Config) (c, s error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			err = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
		done <- err
	}()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", l.Addr().String(),
		client)
	if err == nil {
		conn.Close()
	}
	return err, <-done
}

func TestWhoSpeaksWithWhom(t *testing.T) {
	a, b := authority(t), authority(t)
	of := func(a *Authority, h pando.HostName) *Identity {
		i, err := a.Identity(h, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	server, h1, h2, alien := of(a, ""), of(a, "h1"), of(a, "h2"), of(b, "h1")
	token, err := a.Token(time.Now().Add(time.Hour), 1)
	if err != nil {
		t.Fatal(err)
	}
	byToken, err := ByToken(token)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name           string
		client, server *tls.Config
		good           bool
	}{
		{"member to server", h1.ToServer(), server.Anybody(), true},
		{"server to host", server.ToHost("h2"), h2.Members(), true},
		{"host to host", h1.ToHost("h2"), h2.Members(), true},
		{"another host than meant", h1.ToHost("h2"), h1.Members(), false},
		{"a host that says it is the server", h1.ToServer(), h2.Anybody(), false},
		{"another cluster's server", h1.ToServer(), of(b, "").Anybody(), false},
		{"another cluster's host at a host", alien.ToHost("h2"), h2.Members(), false},
		{"by token", byToken, server.Anybody(), true},
		{"by token to another cluster", byToken, of(b, "").Anybody(), false},
		{"by token to a host that says it is the server", byToken, h1.Anybody(), false},
		{"by token where members are wanted", byToken, server.Members(), false},
	} {
		if cerr, serr := meet(t, c.client, c.server); (cerr == nil && serr == nil) != c.good {
			t.Errorf("%s: client %v, server %v", c.name, cerr, serr)
		}
	}
}

func TestAMembershipIsKeptAndRenewed(t *testing.T) {
	a, b, dir := authority(t), authority(t), t.TempDir()
	if m, err := LoadMembership(dir); m != nil || err != nil {
		t.Fatalf("%v, %v", m, err)
	}
	i, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	signed := func(by *Authority, at time.Time) []byte {
		request, err := i.Request()
		if err != nil {
			t.Fatal(err)
		}
		der, err := by.Sign(request, "h2", at)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	if err := i.Accept(signed(a, time.Now()), a.Certificate().Raw); err != nil {
		t.Fatal(err)
	}
	if err := (&Membership{Host: "h2", Slot: 3, Identity: i}).Save(dir); err != nil {
		t.Fatal(err)
	}
	m, err := LoadMembership(dir)
	if err != nil || m.Host != "h2" || m.Slot != 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	if h, err := HostOf(m.Identity.own.Load().Leaf); h != "h2" || err != nil {
		t.Errorf("%s, %v", h, err)
	}
	later := time.Now().Add(24 * time.Hour)
	if err := m.Identity.Accept(signed(a, later), a.Certificate().Raw); err != nil ||
		m.Identity.Ends().Before(later.Add(CertificateLife-time.Minute)) {
		t.Errorf("renewed until %s, %v", m.Identity.Ends(), err)
	}
	if err := m.Identity.Accept(signed(b, later),
		b.Certificate().Raw); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("another cluster's certificate: %v", err)
	}
	if err := m.Identity.Accept(b.Certificate().Raw,
		b.Certificate().Raw); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a certificate of another key: %v", err)
	}
	server, err := a.Identity("", later)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := HostOf(server.own.Load().Leaf); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("the server is no host: %v", err)
	}
}

// All servers of a cluster give out the same key of the probes, and each cluster has its own.
func TestTheKeyOfTheProbesFollowsFromTheAuthority(t *testing.T) {
	dir := t.TempDir()
	var keys [][]byte
	for _, dir := range []string{dir, dir, t.TempDir()} {
		a, err := OpenAuthority(dir, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		k, err := a.ProbeKey()
		if err != nil || len(k) != 32 {
			t.Fatalf("the key has %d bytes (%v)", len(k), err)
		}
		keys = append(keys, k)
	}
	if !bytes.Equal(keys[0], keys[1]) || bytes.Equal(keys[0], keys[2]) {
		t.Error("the keys do not follow from the authority")
	}
}
