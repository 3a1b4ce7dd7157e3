package daemon

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/driver/cluster/trust"
)

// silent is a connection that sends nothing.
type silent struct {
	net.Conn
	closed bool
}

func (s *silent) Close() error { s.closed = true; return nil }

// flood admits silent connections from an address.
func (c *crowd) flood(from netip.Addr, n int) (all []*guest, admitted int) {
	for range n {
		g := &guest{Conn: &silent{}, of: c, from: from}
		if c.admit(g) {
			admitted++
		}
		all = append(all, g)
	}
	return all, admitted
}

func TestOneNetworkHasAShareOfTheStrangers(t *testing.T) {
	c := bounded(nil).(*crowd)
	all := 0
	for n := range 4 { // addresses of one machine
		_, admitted := c.flood(netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n+1)), 100)
		all += admitted
	}
	if all != int(strangerConnections.Each) {
		t.Errorf("one /64 has %d connections, want %d", all, strangerConnections.Each)
	}
	if _, admitted := c.flood(netip.MustParseAddr("2001:db8:0:1::1"), 1); admitted != 1 {
		t.Error("another network is shut out")
	}
}

func TestTheOldestStrangerMakesRoom(t *testing.T) {
	c := bounded(nil).(*crowd)
	first, _ := c.flood(netip.MustParseAddr("192.0.2.1"), 1)
	for n := range strangerConnections.Total {
		if _, admitted := c.flood(netip.AddrFrom4([4]byte{198, 51, byte(n / 100), 1}), 1); admitted != 1 {
			t.Fatalf("stranger %d is refused", n)
		}
	}
	if !first[0].Conn.(*silent).closed {
		t.Error("the oldest stranger is still here")
	}
	if u := c.strangers.Use(netip.Prefix{}); u.All != strangerConnections.Total ||
		len(c.queue) != int(u.All) {
		t.Errorf("%+v, and %d in the queue", u, len(c.queue))
	}
}

// openCrowd returns an authority, a server's identity, and a bounded listener with its crowd.
func openCrowd(t *testing.T) (*trust.Authority, *trust.Identity, net.Listener, *crowd) {
	t.Helper()
	ca, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ca, server, l, bounded(l).(*crowd)
}

// serveCrowd answers members and tokens of a tenant until the returned function is called.
func serveCrowd(t *testing.T, c *crowd, server *trust.Identity) (end func()) {
	gate := newGatekeeper(func(k access.TokenKey, _ []byte) (access.Token, error) {
		return access.Token{TokenKey: k}, nil
	}, slog.New(slog.DiscardHandler))
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveHTTP(tls.NewListener(c, recognizing(server.Anybody())), http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				if carries(r) {
					gate.admit(answer).ServeHTTP(w, r)
					return
				}
				answer(w, r)
			}))(ctx)
	}()
	return func() { stop(); <-ended }
}

// While strangers take all their places again and again, a member and a token come in and stay.
func TestAFloodOfStrangersShutsOutNobody(t *testing.T) {
	ca, server, l, c := openCrowd(t)
	defer serveCrowd(t, c, server)()
	rounds := byte(0)
	flood := func() {
		rounds++
		for n := range byte(20) {
			c.flood(netip.AddrFrom4([4]byte{203, rounds, n, 1}), 100)
		}
	}
	flood()
	member, err := ca.Identity("h1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := ca.TenantToken(access.TokenKey{Tenant: "acme", Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	for name, one := range map[string]struct {
		config *tls.Config
		header string
	}{
		"member": {member.ToServer(), ""},
		"token": {&tls.Config{InsecureSkipVerify: true},
			"Authorization: " + bearer + text + "\r\n"},
	} {
		conn, err := tls.Dial("tcp", l.Addr().String(), one.config)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		patiently(t, conn)
		in := bufio.NewReader(conn)
		for n := range 3 {
			fmt.Fprintf(conn, "GET /v1/services HTTP/1.1\r\nHost: x\r\n%s\r\n", one.header)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%s, request %d: %v", name, n+1, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			flood() // the connection is no stranger any more
		}
	}
	if m, k := c.members.Use(netip.MustParseAddr("127.0.0.1")).Own, c.tokens.Use("acme").Own; m != 1 ||
		k != 1 {
		t.Errorf("%d members and %d tokens are counted", m, k)
	}
}

// Tokens of one tenant have a share of the places for tokens.
func TestATenantHasAShareOfTheConnections(t *testing.T) {
	c := bounded(nil).(*crowd)
	take := func(t pando.Tenant, n int) (all int) {
		for m := range n {
			guests, _ := c.flood(netip.AddrFrom4([4]byte{192, 0, 2, byte(m)}), 1)
			if guests[0].becomeCaller(t) == nil {
				all++
			}
		}
		return all
	}
	if n := take("acme", 300); n != int(tokenConnections.Each) {
		t.Errorf("a tenant has %d connections, want %d", n, tokenConnections.Each)
	}
	if n := take("bank", 1); n != 1 {
		t.Error("another tenant is shut out")
	}
}

// The port of the store admits certificates only. A tenant that floods it from many addresses is a
// stranger there, also with a token, and takes no place of a member.
func TestAFloodOfATenantLeavesTheStoreToMembers(t *testing.T) {
	ca, server, l, c := openCrowd(t)
	member, err := ca.Identity("h1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveHTTP(tls.NewListener(c, recognizing(server.Members())), http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))(ctx)
	}()
	defer func() { stop(); <-ended }()
	rounds := byte(0)
	flood := func() {
		rounds++
		for n := range byte(20) {
			c.flood(netip.AddrFrom4([4]byte{203, rounds, n, 1}), 100)
		}
	}
	flood()
	bare, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err == nil { // the refusal comes with the first read of TLS 1.3
		patiently(t, bare)
		fmt.Fprintf(bare, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: %sx\r\n\r\n", bearer)
		_, err = bufio.NewReader(bare).ReadByte()
	}
	if err == nil {
		t.Error("a caller without a certificate is answered")
	}
	conn, err := tls.Dial("tcp", l.Addr().String(), member.ToServer())
	if err != nil {
		t.Fatal(err)
	}
	patiently(t, conn)
	in := bufio.NewReader(conn)
	for n := range 3 {
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("request %d of a member: %v", n+1, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		flood()
	}
	if m := c.members.Use(netip.MustParseAddr("127.0.0.1")).Own; m != 1 {
		t.Errorf("%d members are counted", m)
	}
}
