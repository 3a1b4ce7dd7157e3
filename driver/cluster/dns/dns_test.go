package dns

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"pando.run/pando"
)

func start(t *testing.T, upstreams []string) *Server {
	t.Helper()
	s := New(Config{Addr: "127.0.0.1:0", Upstreams: upstreams,
		Lookup: func(name pando.ServiceName, tenant pando.Tenant) (v4, v6 netip.Addr, ok bool) {
			switch {
			case name == "web" && tenant == pando.DefaultTenant:
				return netip.MustParseAddr("10.127.0.9"), netip.MustParseAddr("fd70::9"), true
			case name == "web" && tenant == "shop":
				return netip.MustParseAddr("10.127.0.10"), netip.Addr{}, true
			}
			return v4, v6, false
		}})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func ask(t *testing.T, s *Server, network, name string, qtype uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.SetEdns0(4096, false)
	c := dns.Client{Net: network}
	answer, _, err := c.Exchange(m, s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestAnswers(t *testing.T) {
	s := start(t, []string{})
	for _, c := range []struct {
		name  string
		qtype uint16
		rcode int
		want  string // the first answer; "": no answer, but a SOA
	}{
		{"web.pando.", dns.TypeA, dns.RcodeSuccess, "web.pando.\t5\tIN\tA\t10.127.0.9"},
		{"WEB.Pando.", dns.TypeA, dns.RcodeSuccess, "WEB.Pando.\t5\tIN\tA\t10.127.0.9"},
		{"web.pando.", dns.TypeAAAA, dns.RcodeSuccess, "web.pando.\t5\tIN\tAAAA\tfd70::9"},
		{"web.default.pando.", dns.TypeA, dns.RcodeSuccess, "web.default.pando.\t5\tIN\tA\t10.127.0.9"},
		{"web.shop.pando.", dns.TypeA, dns.RcodeSuccess, "web.shop.pando.\t5\tIN\tA\t10.127.0.10"},
		{"web.shop.pando.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"web.pando.", dns.TypeMX, dns.RcodeSuccess, ""},
		{"nobody.pando.", dns.TypeA, dns.RcodeNameError, ""},
		{"x.web.shop.pando.", dns.TypeA, dns.RcodeNameError, ""},
		{"pando.", dns.TypeA, dns.RcodeSuccess, ""},
		{"pando.", dns.TypeNS, dns.RcodeSuccess, "pando.\t5\tIN\tNS\tns.pando."},
		{"pando.", dns.TypeSOA, dns.RcodeSuccess, soa().String()},
	} {
		for _, network := range []string{"udp", "tcp"} {
			m := ask(t, s, network, c.name, c.qtype)
			got := ""
			if len(m.Answer) > 0 {
				got = m.Answer[0].String()
			}
			if m.Rcode != c.rcode || got != c.want || !m.Authoritative {
				t.Errorf("%s %s over %s: %s", dns.TypeToString[c.qtype], c.name, network, m)
			}
			if c.want == "" && (len(m.Ns) != 1 || m.Ns[0].String() != soa().String()) {
				t.Errorf("%s %s: no SOA beside a no: %s", dns.TypeToString[c.qtype], c.name, m)
			}
		}
	}
}

func TestOtherNamesGoUpstream(t *testing.T) {
	upstream := start(t, []string{}) // any resolver will do
	s := start(t, []string{"127.0.0.1:1", upstream.Addr()})
	for _, network := range []string{"udp", "tcp"} {
		// The upstream has no upstream of its own. Its SERVFAIL is passed on with the question's id.
		if m := ask(t, s, network, "example.org.", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("over %s: %s", network, m)
		}
	}
	answering := &dns.Server{Addr: "127.0.0.1:0",
		Net: "udp", Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg)
			m.SetReply(q)
			m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT,
				Class: dns.ClassINET, Ttl: 60}, Txt: []string{"upstream"}}}
			_ = w.WriteMsg(m)
		})}
	started := make(chan struct{})
	answering.NotifyStartedFunc = func() { close(started) }
	ended := make(chan error, 1)
	go func() { ended <- answering.ListenAndServe() }()
	select {
	case <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answering.Shutdown(); <-ended })
	via := start(t, []string{answering.PacketConn.LocalAddr().String()})
	m := ask(t, via, "udp", "example.org.", dns.TypeTXT)
	if len(m.Answer) != 1 || m.Answer[0].(*dns.TXT).Txt[0] != "upstream" {
		t.Errorf("the upstream's answer did not arrive: %s", m)
	}
}

func TestMalformedQuestionsGetAnAnswer(t *testing.T) {
	s := start(t, []string{})
	m := new(dns.Msg)
	m.SetQuestion("web.pando.", dns.TypeA)
	m.Opcode = dns.OpcodeUpdate
	c := dns.Client{}
	if a, _, err := c.Exchange(m, s.Addr()); err != nil || a.Rcode != dns.RcodeNotImplemented {
		t.Errorf("an update: %v, %v", a, err)
	}
}

// A port that is free for UDP may be taken for TCP. For port 0, bind tries another port. It does
// not change a given port.
func TestAPortIsFreeForBoth(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	tried := 0
	taken := func(most int) func(string, string) (net.Listener, error) {
		tried = 0
		return func(network, addr string) (net.Listener, error) {
			if tried++; tried <= most {
				addr = busy.Addr().String()
			}
			return net.Listen(network, addr)
		}
	}
	udp, tcp, err := bind("127.0.0.1:0", taken(3))
	if err != nil || tried < 4 {
		t.Fatalf("%v after %d tries, want success from the 4th on", err, tried)
	}
	if udp.LocalAddr().String() != tcp.Addr().String() {
		t.Errorf("UDP at %s and TCP at %s", udp.LocalAddr(), tcp.Addr())
	}
	if err := errors.Join(udp.Close(), tcp.Close()); err != nil {
		t.Error(err)
	}
	for addr, want := range map[string]int{"127.0.0.1:0": bindTries, busy.Addr().String(): 1} {
		if _, _, err := bind(addr, taken(1000)); !errors.Is(err, syscall.EADDRINUSE) || tried != want {
			t.Errorf("%s: %v after %d tries, want %d", addr, err, tried, want)
		}
	}
}

func TestStrangersGetTheNamesOfServicesOnly(t *testing.T) {
	upstream := start(t, []string{})
	own := netip.MustParsePrefix("127.0.0.2/32")
	s := New(Config{
		Addr: "127.0.0.1:0", Upstreams: []string{upstream.Addr()}, Recurses: own.Contains,
		Lookup: func(pando.ServiceName, pando.Tenant) (v4, v6 netip.Addr, ok bool) {
			return netip.MustParseAddr("10.127.0.9"), v6, true
		},
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, network := range []string{"udp", "tcp"} {
		if m := ask(t, s, network, "example.org.", dns.TypeA); m.Rcode != dns.RcodeRefused {
			t.Errorf("a stranger over %s: %s", network, m)
		}
		if m := ask(t, s, network, "web.pando.", dns.TypeA); len(m.Answer) != 1 {
			t.Errorf("a stranger over %s: %s", network, m)
		}
	}
	m := new(dns.Msg)
	m.SetQuestion("example.org.", dns.TypeA)
	c := dns.Client{Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: own.Addr().AsSlice()}}}
	// SERVFAIL is the upstream's answer.
	if a, _, err := c.Exchange(m, s.Addr()); err != nil || a.Rcode != dns.RcodeServerFailure {
		t.Errorf("an instance: %v, %v", a, err)
	}
}
