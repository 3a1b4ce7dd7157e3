package dns

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"pando.run/pando"
)

// lookup returns the addresses of NAME.pando. or NAME.TENANT.pando., or those of an ordinal or the
// leader below it. An ordinal of the default tenant comes before a tenant of the same name.
func (s *Server) lookup(name string) (v4, v6 netip.Addr, ok bool) {
	labels := dns.SplitDomainName(strings.TrimSuffix(name, Zone))
	if n := len(labels); n == 2 || n == 3 {
		if v4, v6, ok = s.ordinal(labels[0], serviceOf(labels[1:])); ok {
			return v4, v6, true
		}
	}
	if n := len(labels); n == 1 || n == 2 {
		if v4, v6, ok = s.service(serviceOf(labels)); ok {
			return v4, v6, true
		}
	}
	return s.aliased(labels)
}

// aliased returns the addresses of a further name: ALIAS.TENANT.pando., or a name without dots in
// the default tenant.
func (s *Server) aliased(labels []string) (v4, v6 netip.Addr, ok bool) {
	tenant := pando.DefaultTenant
	if n := len(labels); n > 1 {
		tenant, labels = pando.Tenant(labels[n-1]), labels[:n-1]
	}
	if s.config.Aliased == nil || len(labels) == 0 {
		return v4, v6, false
	}
	key, ok := s.config.Aliased(tenant, strings.Join(labels, "."))
	if !ok {
		return v4, v6, false
	}
	return s.service(key)
}

// service returns the VIPs of a service that its instances answer. A resolver sorts an IPv6 address
// before the others, so a client would send there first, and by UDP all would be lost in silence.
func (s *Server) service(key pando.ServiceKey) (v4, v6 netip.Addr, ok bool) {
	v4, v6, ok = s.config.Lookup(key.Name, key.Tenant)
	if e, known := s.endpoints(key); known {
		v4, v6 = heard(v4, v6, e.Hears)
	}
	return v4, v6, ok
}

// heard returns the addresses that are answered.
func heard(v4, v6 netip.Addr, h pando.Hearing) (netip.Addr, netip.Addr) {
	if !h.By4() {
		v4 = netip.Addr{}
	}
	if !h.By6() {
		v6 = netip.Addr{}
	}
	return v4, v6
}

// further answers an instance's question for a further name that stands alone. Resolvers of musl
// search no domains for a name with a dot. It returns false for any other question.
func (s *Server) further(m, q *dns.Msg, from net.Addr) bool {
	question := q.Question[0]
	if s.config.Aliased == nil || s.config.Owner == nil || question.Qclass != dns.ClassINET {
		return false
	}
	a, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return false
	}
	tenant, ok := s.config.Owner(a.Addr().Unmap().WithZone(""))
	if !ok {
		return false
	}
	name := strings.TrimSuffix(dns.CanonicalName(question.Name), ".")
	key, ok := s.config.Aliased(tenant, name)
	if !ok {
		return false
	}
	v4, v6, ok := s.service(key)
	if !ok {
		return false
	}
	m.SetReply(q)
	m.Authoritative, m.RecursionAvailable = true, true
	if q.IsEdns0() != nil {
		m.SetEdns0(udpPayloadBytes, false)
	}
	addresses(m, question, v4, v6)
	return true
}

// serviceOf returns the service of the labels NAME or NAME.TENANT.
func serviceOf(labels []string) pando.ServiceKey {
	key := pando.DefaultService(pando.ServiceName(labels[0]))
	if len(labels) > 1 {
		key.Tenant = pando.Tenant(labels[1])
	}
	return key
}

// endpoints returns the ports and the ordinals of a service.
func (s *Server) endpoints(key pando.ServiceKey) (pando.Endpoints, bool) {
	if s.config.Endpoints == nil {
		return pando.Endpoints{}, false
	}
	return s.config.Endpoints(key)
}

// ordinal returns the addresses of an ordinal, such as db-0 of db.
func (s *Server) ordinal(name string, of pando.ServiceKey) (v4, v6 netip.Addr, ok bool) {
	if name == pando.LeaderLabel {
		e, _ := s.endpoints(of)
		if n := pando.LeaderOf(e.Names); n != nil {
			v4, v6 = heard(n.IP4, n.IP6, n.Hears)
			return v4, v6, true
		}
		return v4, v6, false
	}
	ordinal, ok := pando.OrdinalOf(of.Name, name)
	if !ok {
		return v4, v6, false
	}
	e, _ := s.endpoints(of)
	at := slices.IndexFunc(e.Names, func(n pando.Named) bool { return n.Ordinal == ordinal })
	if at < 0 {
		return v4, v6, false
	}
	v4, v6 = heard(e.Names[at].IP4, e.Names[at].IP6, e.Names[at].Hears)
	return v4, v6, true
}

// records answers a question for SRV records, such as _http._tcp.web.pando. It returns true for any
// other name.
func (s *Server) records(m *dns.Msg, q dns.Question) (others bool) {
	labels := dns.SplitDomainName(strings.TrimSuffix(dns.CanonicalName(q.Name), Zone))
	if len(labels) < 3 || len(labels) > 4 || !strings.HasPrefix(labels[0], "_") ||
		!strings.HasPrefix(labels[1], "_") {
		return true
	}
	key := serviceOf(labels[2:])
	e, ok := s.endpoints(key)
	port, published := portOf(e.Ports, labels[0][1:], pando.Protocol(labels[1][1:]))
	if !ok || !published {
		m.Rcode = dns.RcodeNameError
		return false
	}
	if q.Qtype != dns.TypeSRV && q.Qtype != dns.TypeANY {
		return false
	}
	service := strings.Join(labels[2:], ".") + "." + Zone
	if e.Names == nil {
		v4, v6, _ := s.service(key)
		s.srv(m, q.Name, service, port.Published, v4, v6)
	}
	for _, n := range e.Names {
		name := pando.OrdinalName(key.Name, n.Ordinal) + "." + service
		v4, v6 := heard(n.IP4, n.IP6, n.Hears)
		s.srv(m, q.Name, name, port.Target, v4, v6)
	}
	return false
}

// srv adds an SRV record to an answer, with the addresses of its target.
func (s *Server) srv(m *dns.Msg, name, target string, port uint16, v4, v6 netip.Addr) {
	head := func(name string, t uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: t, Class: dns.ClassINET, Ttl: ttlSeconds}
	}
	m.Answer = append(m.Answer, &dns.SRV{Hdr: head(name, dns.TypeSRV), Weight: 1, Port: port,
		Target: target})
	if v4.Is4() {
		m.Extra = append(m.Extra, &dns.A{Hdr: head(target, dns.TypeA), A: v4.AsSlice()})
	}
	if v6.Is6() {
		m.Extra = append(m.Extra, &dns.AAAA{Hdr: head(target, dns.TypeAAAA), AAAA: v6.AsSlice()})
	}
}

// portOf returns the port of a name such as http or 8080. The only port of a protocol has every
// name.
func portOf(all []pando.Port, name string, protocol pando.Protocol) (pando.Port, bool) {
	var of []pando.Port
	for _, p := range all {
		if p.Protocol == protocol {
			of = append(of, p)
		}
	}
	number, err := strconv.Atoi(name)
	if err != nil {
		number, err = net.LookupPort(string(protocol), name) // a table of this machine
	}
	n := slices.IndexFunc(of, func(p pando.Port) bool {
		return err == nil && int(p.Published) == number
	})
	if n < 0 && len(of) == 1 {
		n = 0
	}
	if n < 0 {
		return pando.Port{}, false
	}
	return of[n], true
}
