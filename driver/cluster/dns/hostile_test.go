package dns

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"pando.run/pando"
)

// asker is a client that stores the answers to its message.
type asker struct {
	dns.ResponseWriter
	answers []*dns.Msg
}

func (*asker) RemoteAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4000} }

func (a *asker) WriteMsg(m *dns.Msg) error { a.answers = append(a.answers, m); return nil }

// Every message gets one answer: to its question, and short enough for its client. Answers about
// our own zone never come from upstream.
func FuzzMessage(f *testing.F) {
	seed := func(name string, qtype uint16, change func(*dns.Msg)) {
		m := new(dns.Msg)
		m.SetQuestion(name, qtype)
		if change != nil {
			change(m)
		}
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	seed("web.pando.", dns.TypeA, nil)
	seed("WEB.shop.Pando.", dns.TypeAAAA, func(m *dns.Msg) { m.SetEdns0(100, true) })
	seed("web.pando.", dns.TypeANY,
		func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(3) })
	seed(".", dns.TypeNS, nil)
	seed("pando.", dns.TypeAXFR, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
	seed(strings.Repeat("a.", 120)+"pando.", dns.TypeA, nil)
	seed(`we\.b.pando.`, dns.TypeA,
		func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })
	s := New(Config{Upstreams: []string{},
		Lookup: func(name pando.ServiceName, tenant pando.Tenant) (v4, v6 netip.Addr, ok bool) {
			return netip.MustParseAddr("10.127.0.9"), netip.MustParseAddr("fd70::9"), name == "web"
		}})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := new(dns.Msg)
		if q.Unpack(b) != nil {
			return // the server's reader refuses it
		}
		var a asker
		s.ServeDNS(&a, q)
		if len(a.answers) != 1 {
			t.Fatalf("%d answers", len(a.answers))
		}
		m := a.answers[0]
		packed, err := m.Pack()
		if err != nil {
			t.Fatalf("the answer cannot be packed: %v\n%s", err, m)
		}
		limit := dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			limit = max(limit, int(opt.UDPSize()))
		}
		if m.Id != q.Id || !m.Response || len(packed) > limit {
			t.Fatalf("%d bytes of at most %d to\n%s\n%s", len(packed), limit, q, m)
		}
		ours := q.Opcode == dns.OpcodeQuery && len(q.Question) == 1 && dns.IsSubDomain(Zone,
			dns.CanonicalName(q.Question[0].Name))
		if ours && !m.Authoritative && m.Rcode != dns.RcodeBadVers {
			t.Fatalf("our own zone, and not authoritative: %s", m)
		}
	})
}

// Noise on the sockets, UDP or TCP, does not harm proper clients.
func TestNoise(t *testing.T) {
	s := start(t, []string{})
	for _, network := range []string{"udp", "tcp"} {
		for n := range 200 {
			c, err := net.Dial(network, s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			noise := make([]byte, n)
			for i := range noise {
				noise[i] = byte(i*n + n)
			}
			_, _ = c.Write(noise)
			c.Close()
		}
	}
	for _, network := range []string{"udp", "tcp"} {
		if m := ask(t, s, network, "web.pando.", dns.TypeA); len(m.Answer) != 1 {
			t.Errorf("over %s: %s", network, m)
		}
	}
}

// A dead upstream does not delay questions about services.
func TestADeadUpstreamHoldsUpNobody(t *testing.T) {
	hole, err := net.ListenPacket("udp", "127.0.0.1:0") // receives and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	s := start(t, []string{hole.LocalAddr().String()})
	c, err := net.Dial("udp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 * forwarded.Total {
		m := new(dns.Msg)
		m.SetQuestion("example.org.", dns.TypeA)
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	// The flood may have filled the server's socket, so the client asks again, as resolvers do.
	m := new(dns.Msg)
	m.SetQuestion("web.pando.", dns.TypeA)
	asker := dns.Client{Timeout: upstreamWaitMax / 10}
	for begin := time.Now(); ; {
		answer, _, err := asker.Exchange(m, s.Addr())
		if err == nil && len(answer.Answer) == 1 {
			return
		}
		if time.Since(begin) >= upstreamWaitMax {
			t.Fatalf("no answer about a service within %s: %v %s", upstreamWaitMax, err, answer)
		}
	}
}
