package dns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// answering starts a resolver that answers every question with a code. It returns its address.
func answering(t *testing.T, code int) string {
	t.Helper()
	s := New(Config{Addr: "127.0.0.1:0", Upstreams: []string{}})
	udp, tcp, err := bind("127.0.0.1:0", net.Listen)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = udp.LocalAddr().String()
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, code))
	})
	s.servers = [2]*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}}
	for _, one := range s.servers {
		s.serving.Go(func() { _ = one.ActivateAndServe() })
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.addr
}

func question() *dns.Msg { return new(dns.Msg).SetQuestion("example.org.", dns.TypeA) }

// A resolver that refuses or fails does not know the answer: the next one is asked. Other answers
// count, also that a name does not exist.
func TestAResolverThatRefusesOrFailsIsPassedOver(t *testing.T) {
	refuses, fails := answering(t, dns.RcodeRefused), answering(t, dns.RcodeServerFailure)
	knows, denies := answering(t, dns.RcodeSuccess), answering(t, dns.RcodeNameError)
	for _, c := range []struct {
		upstreams []string
		want      int
	}{
		{[]string{refuses, knows}, dns.RcodeSuccess}, {[]string{fails, knows}, dns.RcodeSuccess},
		{[]string{fails, refuses, denies}, dns.RcodeNameError},
		{[]string{denies, knows}, dns.RcodeNameError},
		{[]string{fails, refuses}, dns.RcodeRefused}, {[]string{}, dns.RcodeServerFailure},
	} {
		s := New(Config{Upstreams: c.upstreams})
		if got := s.forward(question(), &net.UDPAddr{}, s.upstreams(), nil); got.Rcode != c.want {
			t.Errorf("%v: %s, want %s", c.upstreams, dns.RcodeToString[got.Rcode],
				dns.RcodeToString[c.want])
		}
	}
}

// An instance with resolvers of its own asks them, also for names without a dot. One of them that is
// silent is none of the host's.
func TestAnInstanceAsksResolversOfItsOwn(t *testing.T) {
	knows, denies := answering(t, dns.RcodeSuccess), answering(t, dns.RcodeNameError)
	own := map[string]string{"127.0.0.9": knows, "127.0.0.10": "127.0.0.1:1"}
	silent := &Silent{}
	s := New(Config{Addr: "127.0.0.1:0", Upstreams: []string{denies}, Silent: silent,
		Resolvers: func(a netip.Addr) []netip.AddrPort {
			if at, ok := own[a.String()]; ok {
				return []netip.AddrPort{netip.MustParseAddrPort(at)}
			}
			return nil
		}})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		from, name string
		want       int
	}{
		{"127.0.0.9", "example.org.", dns.RcodeSuccess}, {"127.0.0.9", "printer.", dns.RcodeSuccess},
		{"127.0.0.10", "example.org.", dns.RcodeServerFailure},
		{"127.0.0.1", "example.org.", dns.RcodeNameError}, {"127.0.0.1", "printer.", dns.RcodeNameError},
	} {
		client := dns.Client{Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(c.from)}}}
		got, _, err := client.Exchange(new(dns.Msg).SetQuestion(c.name, dns.TypeA), s.Addr())
		if err != nil || got.Rcode != c.want {
			t.Errorf("%s asks for %s: %v, %v, want %s", c.from, c.name, got, err, dns.RcodeToString[c.want])
		}
	}
	if len(silent.at) > 0 {
		t.Errorf("the host's silent resolvers: %v", silent.at)
	}
}

// The host's resolvers are those of its file now: DHCP or a VPN may have replaced it.
func TestTheHostsResolversAreFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(server string, at time.Time) {
		t.Helper()
		fresh := file + ".new"
		err := os.WriteFile(fresh, fmt.Appendf(nil, "nameserver %s\n", server), 0o644)
		if err == nil {
			err = os.Chtimes(fresh, at, at)
		}
		if err == nil {
			err = os.Rename(fresh, file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s := New(Config{Resolv: file})
	s.addr = "127.0.0.3:53"
	if got := s.upstreams(); len(got) != 0 {
		t.Errorf("without a file: %v", got)
	}
	then := time.Unix(1_800_000_000, 0)
	write("127.0.0.1", then)
	if got := fmt.Sprint(s.upstreams()); got != "[127.0.0.1:53]" {
		t.Errorf("at first: %s", got)
	}
	write("127.0.0.2", then.Add(time.Second))
	if got := fmt.Sprint(s.upstreams()); got != "[127.0.0.2:53]" {
		t.Errorf("after a change: %s", got)
	}
	write("127.0.0.3", then.Add(2*time.Second))
	if got := s.upstreams(); len(got) != 0 {
		t.Errorf("this server itself: %v", got)
	}
}
