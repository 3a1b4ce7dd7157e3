package dns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"pando.run/pando"
)

// withOrdinals returns a server with the stateful db, of tenant shop as well, and the service web
// with three ports. A tenant db has services such as db-1.
func withOrdinals(t *testing.T) *Server {
	t.Helper()
	ports := []pando.Port{{Published: 3306, Target: 13306, Protocol: pando.TCP}}
	named := func(n int, a string) pando.Named {
		return pando.Named{Ordinal: n, IP4: netip.MustParseAddr(a)}
	}
	known := map[pando.ServiceKey]pando.Endpoints{
		pando.DefaultService("db"): {Ports: ports, Names: []pando.Named{named(1, "10.128.0.2"),
			named(2, "10.128.16.2")}},
		pando.DefaultService("pg"): {Ports: ports, Names: []pando.Named{
			{Ordinal: 1, IP4: netip.MustParseAddr("10.128.0.5"), Term: 3},
			{Ordinal: 2, IP4: netip.MustParseAddr("10.128.0.6"), Term: 4},
			{Ordinal: 3, IP4: netip.MustParseAddr("10.128.0.7")}}},
		{Tenant: "shop", Name: "db"}: {Ports: ports, Names: []pando.Named{named(1, "10.128.0.9")}},
		pando.DefaultService("web"): {Ports: []pando.Port{
			{Published: 80, Target: 8080, Protocol: pando.TCP},
			{Published: 443, Target: 8443, Protocol: pando.TCP},
			{Published: 53, Target: 53, Protocol: pando.UDP}}},
	}
	s := New(Config{Addr: "127.0.0.1:0", Upstreams: []string{},
		Endpoints: func(k pando.ServiceKey) (pando.Endpoints, bool) { e, ok := known[k]; return e, ok },
		Lookup: func(n pando.ServiceName, tenant pando.Tenant) (v4, v6 netip.Addr, ok bool) {
			switch {
			case n == "web":
				return netip.MustParseAddr("10.127.0.9"), netip.MustParseAddr("fd70::9"), true
			case strings.HasPrefix(string(n), "db-") && tenant == "db":
				return netip.MustParseAddr("10.127.0.77"), netip.Addr{}, true
			}
			return v4, v6, false
		}})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestNamesOfOrdinals(t *testing.T) {
	s := withOrdinals(t)
	for name, want := range map[string]string{
		"db-0.db.pando.":           "10.128.0.2",
		"db-1.db.pando.":           "10.128.16.2",
		"db-1.db.default.pando.":   "10.128.16.2",
		"db-0.db.shop.pando.":      "10.128.0.9",
		"db-2.db.pando.":           "10.127.0.77", // no such ordinal: the tenant db
		"leader.pg.pando.":         "10.128.0.6",
		"leader.pg.default.pando.": "10.128.0.6",
		"leader.db.pando.":         "", // none leads
		"leader.web.pando.":        "",
		"db-00.db.shop.pando.":     "",
		"db-1.db.shop.pando.":      "",
		"db-x.db.shop.pando.":      "",
	} {
		got := ""
		m := ask(t, s, "udp", name, dns.TypeA)
		if len(m.Answer) > 0 {
			got = m.Answer[0].(*dns.A).A.String()
		}
		if got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
		if want == "" && m.Rcode != dns.RcodeNameError {
			t.Errorf("%s: %s", name, dns.RcodeToString[m.Rcode])
		}
	}
}

func TestPortsHaveRecords(t *testing.T) {
	s := withOrdinals(t)
	for name, want := range map[string][]string{
		"_http._tcp.web.pando.":     {"80 web.pando."},
		"_https._tcp.web.pando.":    {"443 web.pando."},
		"_443._tcp.web.pando.":      {"443 web.pando."},
		"_any._udp.web.pando.":      {"53 web.pando."}, // the only one
		"_smtp._tcp.web.pando.":     nil,
		"_http._tcp.nobody.pando.":  nil,
		"_http._tcp.pando.":         nil,
		"_mysql._tcp.db.pando.":     {"13306 db-0.db.pando.", "13306 db-1.db.pando."},
		"_3306._tcp.db.shop.pando.": {"13306 db-0.db.shop.pando."},
	} {
		m := ask(t, s, "udp", name, dns.TypeSRV)
		var got []string
		for _, r := range m.Answer {
			srv := r.(*dns.SRV)
			got = append(got, strings.TrimSpace(srv.String()[strings.Index(srv.String(), "\tSRV\t")+9:]))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if addresses := len(m.Extra) > 1; addresses != (want != nil) { // one is EDNS
			t.Errorf("%s comes with %v", name, m.Extra)
		}
		if want == nil && m.Rcode != dns.RcodeNameError {
			t.Errorf("%s: %s", name, dns.RcodeToString[m.Rcode])
		}
	}
	if m := ask(t, s, "udp", "_http._tcp.web.pando.", dns.TypeA); m.Rcode != dns.RcodeSuccess ||
		len(m.Answer) > 0 || len(m.Ns) != 1 {
		t.Errorf("an address of a record's name: %s", m)
	}
}

// A further name leads to its service: below its tenant for every client, and alone for instances
// of the tenant. Names of services come first.
func TestFurtherNamesAreAnswered(t *testing.T) {
	vip := netip.MustParseAddr("10.127.0.10")
	known := map[string]pando.ServiceName{"wp_db": "db", "minio.local": "store", "db": "store"}
	s := New(Config{Addr: "127.0.0.1:0", Upstreams: []string{},
		Lookup: func(n pando.ServiceName, tenant pando.Tenant) (v4, v6 netip.Addr, ok bool) {
			switch {
			case tenant == "shop" && n == "db":
				return vip, v6, true
			case tenant == "shop" && n == "store":
				return vip.Next(), v6, true
			}
			return v4, v6, false
		},
		Aliased: func(t pando.Tenant, name string) (pando.ServiceKey, bool) {
			n, ok := known[name]
			return pando.ServiceKey{Tenant: t, Name: n}, ok && t == "shop"
		},
		Owner: func(netip.Addr) (pando.Tenant, bool) { return "shop", true }})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, want := range map[string]string{
		"WP_DB.shop.pando.": "10.127.0.10", "minio.local.shop.pando.": "10.127.0.11",
		"db.shop.pando.": "10.127.0.10", "wp_db.blog.pando.": "", "wp_db.pando.": "",
		"wp_db.": "10.127.0.10", "Minio.Local.": "10.127.0.11", "other.local.": "",
		"x.wp_db.shop.pando.": "",
	} {
		answer, got := ask(t, s, "udp", name, dns.TypeA), ""
		if len(answer.Answer) > 0 {
			got = answer.Answer[0].(*dns.A).A.String()
		}
		if got != want || (got == "") == (answer.Rcode == dns.RcodeSuccess) {
			t.Errorf("%s is %q, code %d, want %q", name, got, answer.Rcode, want)
		}
	}
}

// No name leads to an IPv6 address unless all instances accept by IPv6.
func TestANameHasTheAddressesThatAreHeard(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.127.0.9"), netip.MustParseAddr("fd70::9")
	for hears, want := range map[pando.Hearing]string{"": "A", "4": "A", "46": "A AAAA", "6": "AAAA"} {
		s := New(Config{Lookup: func(pando.ServiceName, pando.Tenant) (netip.Addr, netip.Addr, bool) {
			return v4, v6, true
		}, Endpoints: func(pando.ServiceKey) (pando.Endpoints, bool) {
			return pando.Endpoints{Hears: hears,
				Ports: []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP}},
				Names: []pando.Named{{Ordinal: 1, IP4: v4, IP6: v6, Hears: hears, Term: 1}}}, true
		}})
		for _, name := range []string{"web.pando.", "web-0.web.pando.", "leader.web.pando.",
			"_http._tcp.web.pando."} {
			m := new(dns.Msg)
			s.own(m, new(dns.Msg).SetQuestion(name, dns.TypeANY))
			var got []string
			for _, r := range append(m.Answer, m.Extra...) {
				if kind := dns.TypeToString[r.Header().Rrtype]; kind != "SRV" {
					got = append(got, kind)
				}
			}
			if all := strings.Join(got, " "); all != want {
				t.Errorf("%s of a service that hears %q has %s, want %s", name, hears, all, want)
			}
		}
	}
}
