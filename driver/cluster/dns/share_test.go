package dns

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"pando.run/pando"
)

// Addresses of the loopback stand for those of instances.
var (
	acme  = netip.MustParseAddr("127.0.0.2")
	bank  = netip.MustParseAddr("127.0.0.3")
	owner = map[netip.Addr]pando.Tenant{acme: "acme", bank: "bank"}
)

// shared is a server with an upstream that answers one name and is silent for others.
func shared(t *testing.T) *Server {
	t.Helper()
	up, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	upstream := &dns.Server{PacketConn: up, Handler: dns.HandlerFunc(
		func(w dns.ResponseWriter, q *dns.Msg) {
			if q.Question[0].Name == "good.example." {
				_ = w.WriteMsg(new(dns.Msg).SetReply(q))
			}
		})}
	ended := make(chan error, 1)
	go func() { ended <- upstream.ActivateAndServe() }()
	t.Cleanup(func() { up.Close(); <-ended })
	s := New(Config{Addr: "127.0.0.1:0", Upstreams: []string{up.LocalAddr().String()},
		Lookup: func(pando.ServiceName, pando.Tenant) (v4, v6 netip.Addr, ok bool) { return },
		Owner: func(a netip.Addr) (pando.Tenant, bool) {
			t, ok := owner[a]
			return t, ok
		}})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// asked returns the code of an answer to a question from an address.
func asked(t *testing.T, s *Server, from netip.Addr, name string) int {
	t.Helper()
	c := dns.Client{Timeout: 5 * time.Second,
		Dialer: &net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return m.Rcode
}

// One tenant fills its share with names that nobody answers. Another tenant and the host still get
// answers.
func TestATenantCannotTakeTheLookupsOfOthers(t *testing.T) {
	s := shared(t)
	flood, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(acme, 0)),
		net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s.Addr())))
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	bad, err := new(dns.Msg).SetQuestion("bad.example.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); s.slots.Use("acme").Own < forwarded.Each; {
		if time.Now().After(end) {
			t.Fatalf("the share is not full: %+v", s.slots.Use("acme"))
		}
		for range 16 { // more at once would fill the socket, and the question of the other is lost
			if _, err := flood.Write(bad); err != nil {
				t.Fatal(err)
			}
		}
		if code := asked(t, s, bank, "good.example."); code != dns.RcodeSuccess {
			t.Fatalf("another tenant got the code %d", code)
		}
		if code := asked(t, s, netip.MustParseAddr("127.0.0.1"),
			"good.example."); code != dns.RcodeSuccess {
			t.Fatalf("the host got the code %d", code)
		}
	}
	if code := asked(t, s, acme, "good.example."); code != dns.RcodeRefused {
		t.Errorf("beyond the share: code %d", code)
	}
}

// Connections hold a descriptor of the agent for seconds.
func TestATenantCannotTakeTheConnectionsOfOthers(t *testing.T) {
	s := shared(t)
	dial := func(from netip.Addr) net.Conn {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err := d.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range connected.Each {
		dial(acme)
	}
	for end := time.Now().Add(30 * time.Second); s.conns.Use("acme").Own < connected.Each; {
		if time.Now().After(end) {
			t.Fatalf("the share is not full: %+v", s.conns.Use("acme"))
		}
		dial(bank).Close()
	}
	answers := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		_, _, err := new(dns.Client).ExchangeWithConn(
			new(dns.Msg).SetQuestion("web.pando.", dns.TypeA), &dns.Conn{Conn: c})
		return err
	}
	if err := answers(dial(acme)); err == nil {
		t.Error("a connection beyond the share got an answer")
	}
	for _, other := range []netip.Addr{bank, netip.MustParseAddr("127.0.0.1")} {
		if err := answers(dial(other)); err != nil {
			t.Errorf("from %s: %v", other, err)
		}
	}
}
