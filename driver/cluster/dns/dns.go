// Package dns answers for the names of services: NAME.pando for the default tenant,
// NAME.TENANT.pando for the others. An ordinal of a stateful service has a name below that of its
// service, such as db-0.db.pando, and SRV records name ports (names.go).
//
// It forwards other names unchanged to the host's own resolvers, except for local names, which
// these cannot resolve. It never caches: it looks up each answer when the question arrives, and an
// answer lives for seconds.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// Zone is the domain of every service.
const Zone = "pando."

// Port is the port of every resolver.
const Port = 53

const (
	ttlSeconds       = 5 // a service that is removed and made anew may get another VIP
	upstreamWaitMax  = 2 * time.Second
	upstreamsWaitMax = 4 * time.Second                        // of all in turn; resolvers ask again after 5 s
	shutdownWaitMax  = upstreamWaitMax + 500*time.Millisecond // Close waits for forwarded questions
	zoneSerial       = 1                                      // the zone has no transfers
	refreshSeconds   = 3600
	udpPayloadBytes  = 1232
	namesOfTheZone   = "ns." + Zone
	mailboxOfTheZone = "hostmaster." + Zone
)

// forwarded bounds the questions that wait for upstream. connected bounds the connections. Further
// ones are refused, to bound memory and descriptors.
var (
	forwarded = share.Bound{Total: 256, Each: 64, Reserve: 64}
	connected = share.Bound{Total: 512, Each: 64, Reserve: 64}
)

// Config configures a Server.
type Config struct {
	Addr string // host:port, for UDP and TCP
	// Lookup returns a service's VIPs. An address that the service does not have is invalid.
	Lookup func(name pando.ServiceName, tenant pando.Tenant) (v4, v6 netip.Addr, ok bool)
	// Aliased returns the service of a tenant that has a further name. Nil: no service has one.
	Aliased func(t pando.Tenant, name string) (pando.ServiceKey, bool)
	// Endpoints returns the ports and the ordinals of a service. Nil: no service has any.
	Endpoints func(s pando.ServiceKey) (pando.Endpoints, bool)
	// Upstreams are host:port of resolvers for all other names. The default is those of Resolv, as
	// the file is when a question comes.
	Upstreams []string
	// Resolvers returns the resolvers that the instance with an address has in place of the upstreams,
	// or nil. By default, no instance has any.
	Resolvers func(netip.Addr) []netip.AddrPort
	// Silent records the upstreams that do not answer. It may be nil.
	Silent *Silent
	// Resolv is a file in the form of resolv.conf. The default is /etc/resolv.conf.
	Resolv string
	// Recurses reports whether an address may ask for names outside the zone. By default, every
	// address may.
	Recurses func(netip.Addr) bool
	// Owner returns the tenant of the instance with an address. ok is false for programs of the host,
	// which have the reserve of operators. By default, all are.
	Owner func(netip.Addr) (t pando.Tenant, ok bool)
}

// Server is a DNS server. Make it with New, then Start; end it with Close.
type Server struct {
	config  Config
	servers [2]*dns.Server
	serving sync.WaitGroup
	slots   *share.Pool[pando.Tenant]
	conns   *share.Pool[pando.Tenant]
	closing atomic.Bool
	addr    string
	system  system
}

// New returns a server that does not listen yet.
func New(c Config) *Server {
	return &Server{config: c, slots: share.New[pando.Tenant](forwarded),
		conns: share.New[pando.Tenant](connected)}
}

// Addr returns the server's address, with the kernel's choice in place of port 0.
func (s *Server) Addr() string { return s.addr }

// Start listens on UDP and TCP. The server answers once Start has returned.
func (s *Server) Start() error {
	udp, tcp, err := bind(s.config.Addr, net.Listen)
	if err != nil {
		return fmt.Errorf("answer DNS on %s: %w", s.config.Addr, err)
	}
	s.addr = udp.LocalAddr().String()
	s.servers = [2]*dns.Server{{PacketConn: udp, Handler: s}, {Listener: bounded{tcp, s}, Handler: s}}
	var started sync.WaitGroup
	for _, one := range s.servers {
		started.Add(1)
		one.NotifyStartedFunc = started.Done
		// ActivateAndServe returns an error when Close closes its socket.
		s.serving.Go(func() { _ = one.ActivateAndServe() })
	}
	started.Wait()
	return nil
}

// bindTries bounds the attempts of bind for port 0.
const bindTries = 32

// bind listens on UDP and TCP at one address. Given port 0, the kernel chooses a port that is free
// for UDP. If that port is in use for TCP, bind tries another.
func bind(
	addr string, listen func(network, addr string) (net.Listener, error),
) (net.PacketConn, net.Listener, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, nil, err
	}
	for n := 1; ; n++ {
		udp, err := net.ListenPacket("udp", addr)
		if err != nil {
			return nil, nil, err
		}
		tcp, err := listen("tcp", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp, nil
		}
		_ = udp.Close() // unused so far
		if port != "0" || n == bindTries || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, nil, err
		}
	}
}

// Close stops answering.
func (s *Server) Close() error {
	s.closing.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), shutdownWaitMax)
	defer cancel()
	var errs []error
	for _, one := range s.servers {
		if one != nil {
			errs = append(errs, one.ShutdownContext(ctx))
		}
	}
	s.serving.Wait()
	return errors.Join(errs...)
}

// bounded is the listener of a server. It closes the connections beyond the bounds.
type bounded struct {
	net.Listener
	of *Server
}

// Accept implements net.Listener.
func (b bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		place, err := b.of.take(b.of.conns, c.RemoteAddr())
		if err == nil {
			return &client{c, place}, nil
		}
		c.Close()
	}
}

// client is a connection that frees its place when it closes.
type client struct {
	net.Conn
	place *share.Hold[pando.Tenant]
}

// Close closes the connection.
func (c *client) Close() error {
	defer c.place.Close()
	return c.Conn.Close()
}

// ServeDNS answers one message.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	switch {
	case q.Opcode != dns.OpcodeQuery:
		m.SetRcode(q, dns.RcodeNotImplemented)
	case len(q.Question) != 1:
		m.SetRcode(q, dns.RcodeFormatError)
	case q.IsEdns0() != nil && q.IsEdns0().Version() != 0: // RFC 6891 §6.1.3
		m.SetRcode(q, dns.RcodeBadVers)
		m.SetEdns0(udpPayloadBytes, false)
	case dns.IsSubDomain(Zone, dns.CanonicalName(q.Question[0].Name)):
		s.own(m, q)
	case s.further(m, q, w.RemoteAddr()):
	default:
		m = s.others(m, q, w.RemoteAddr())
	}
	if w.RemoteAddr().Network() == "udp" {
		size := dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		m.Truncate(size)
	}
	_ = w.WriteMsg(m) // the client may be gone
}

// others answers for a name outside the zone. A resolver of the instance's own may know names that no
// outside resolver does.
func (s *Server) others(m, q *dns.Msg, from net.Addr) *dns.Msg {
	own := s.resolvers(from)
	switch {
	case len(own) == 0 && nobodys(q.Question[0]):
		m.SetRcode(q, dns.RcodeNameError)
	case !s.recurses(from): // an open resolver amplifies attacks on others
		m.SetRcode(q, dns.RcodeRefused)
	case len(own) > 0:
		return s.forward(q, from, own, nil) // a silent one concerns its service alone
	default:
		return s.forward(q, from, s.upstreams(), s.config.Silent)
	}
	return m
}

// resolvers returns host:port of the resolvers of the instance with an address.
func (s *Server) resolvers(from net.Addr) (out []string) {
	if s.config.Resolvers == nil {
		return nil
	}
	a, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return nil
	}
	for _, one := range s.config.Resolvers(a.Addr().Unmap().WithZone("")) {
		out = append(out, one.String())
	}
	return out
}

func (s *Server) recurses(from net.Addr) bool {
	if s.config.Recurses == nil {
		return true
	}
	a, err := netip.ParseAddrPort(from.String())
	return err == nil && s.config.Recurses(a.Addr().Unmap().WithZone(""))
}

// own answers for a name in the zone: with addresses, without a record of that type (NODATA), or as
// an unknown name.
func (s *Server) own(m, q *dns.Msg) {
	m.SetReply(q)
	m.Authoritative = true
	m.RecursionAvailable = true
	if q.IsEdns0() != nil {
		m.SetEdns0(udpPayloadBytes, false)
	}
	question := q.Question[0]
	if question.Qclass != dns.ClassINET && question.Qclass != dns.ClassANY {
		m.Rcode = dns.RcodeRefused
		return
	}
	name := dns.CanonicalName(question.Name)
	header := func(t uint16) dns.RR_Header {
		return dns.RR_Header{Name: question.Name, Rrtype: t, Class: dns.ClassINET, Ttl: ttlSeconds}
	}
	if name == Zone {
		switch question.Qtype {
		case dns.TypeSOA, dns.TypeANY:
			m.Answer = append(m.Answer, soa())
		case dns.TypeNS:
			m.Answer = append(m.Answer, &dns.NS{Hdr: header(dns.TypeNS), Ns: namesOfTheZone})
		}
	} else if s.records(m, question) {
		v4, v6, exists := s.lookup(name)
		if !exists {
			m.Rcode = dns.RcodeNameError
		}
		addresses(m, question, v4, v6)
	}
	if len(m.Answer) == 0 {
		m.Ns = append(m.Ns, soa()) // how long clients may cache the negative answer
	}
}

// addresses answers a question with the addresses of a service.
func addresses(m *dns.Msg, q dns.Question, v4, v6 netip.Addr) {
	header := func(t uint16) dns.RR_Header {
		return dns.RR_Header{Name: q.Name, Rrtype: t, Class: dns.ClassINET, Ttl: ttlSeconds}
	}
	any := q.Qtype == dns.TypeANY
	if v4.Is4() && (any || q.Qtype == dns.TypeA) {
		m.Answer = append(m.Answer, &dns.A{Hdr: header(dns.TypeA), A: v4.AsSlice()})
	}
	if v6.Is6() && (any || q.Qtype == dns.TypeAAAA) {
		m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(dns.TypeAAAA), AAAA: v6.AsSlice()})
	}
}

func soa() dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: Zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttlSeconds},
		Ns:  namesOfTheZone, Mbox: mailboxOfTheZone, Serial: zoneSerial,
		Refresh: refreshSeconds, Retry: refreshSeconds, Expire: refreshSeconds, Minttl: ttlSeconds,
	}
}

// take takes a place of a pool for the owner of an address.
func (s *Server) take(
	p *share.Pool[pando.Tenant], from net.Addr,
) (*share.Hold[pando.Tenant], error) {
	if s.config.Owner != nil {
		a, err := netip.ParseAddrPort(from.String())
		if err != nil {
			return nil, err
		}
		if t, ok := s.config.Owner(a.Addr().Unmap().WithZone("")); ok {
			return p.Take(t, 1)
		}
	}
	return p.TakeAsOperator(1)
}

// forward asks the upstreams in turn, over the network by which the question came. An upstream that
// refuses or fails does not know the answer, so the next one is asked. All together have less time
// than a client waits before it asks again.
func (s *Server) forward(q *dns.Msg, from net.Addr, upstreams []string, silent *Silent) *dns.Msg {
	answer := new(dns.Msg)
	answer.SetRcode(q, dns.RcodeServerFailure)
	slot, err := s.take(s.slots, from)
	if err != nil {
		answer.Rcode = dns.RcodeRefused
		return answer
	}
	defer slot.Close()
	ctx, cancel := context.WithTimeout(context.Background(), upstreamsWaitMax)
	defer cancel()
	client := dns.Client{Net: from.Network(), Timeout: upstreamWaitMax}
	for _, upstream := range upstreams {
		if s.closing.Load() || ctx.Err() != nil {
			break
		}
		m, _, err := client.ExchangeContext(ctx, q, upstream)
		silent.note(upstream, err == nil)
		if err != nil {
			continue
		}
		answer = m
		if m.Rcode != dns.RcodeRefused && m.Rcode != dns.RcodeServerFailure {
			break
		}
	}
	return answer
}
