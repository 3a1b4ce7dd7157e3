package octavia

import (
	"fmt"
	"slices"

	"pando.run/pando"
)

// CreateMember adds a member to a pool of the document and returns its number.
func (d *Document) CreateMember(p *Pool, r *Request) (uint64, error) {
	m := Member{Head: Head{Number: d.next()}, Weight: 1}
	r.address("address", &m.Address)
	r.port("protocol_port", &m.Port)
	r.text("subnet_id", &m.Subnet)
	switch err := m.read(r); {
	case err != nil:
		return 0, err
	case !m.Address.IsValid() || m.Port == 0:
		return 0, fmt.Errorf("%w: member: want address and protocol_port", pando.ErrInvalid)
	case len(p.Members) >= pando.ExternalsMax:
		return 0, fmt.Errorf("%w: %d members, and a pool has at most %d: create another load balancer",
			pando.ErrRefused, len(p.Members), pando.ExternalsMax)
	}
	if err := (pando.External{Address: m.Address}).Check(); err != nil {
		return 0, err
	}
	if p.at(m) != nil {
		return 0, fmt.Errorf("%w: the pool has a member %s port %d already; change that one",
			pando.ErrExists, m.Address, m.Port)
	}
	p.Members = append(p.Members, m)
	return m.Number, nil
}

// at returns the member with the address and the port of another, or nil.
func (p *Pool) at(m Member) *Member {
	for i := range p.Members {
		if p.Members[i].Address == m.Address && p.Members[i].Port == m.Port {
			return &p.Members[i]
		}
	}
	return nil
}

// UpdateMember changes a member of a pool.
func (p *Pool) UpdateMember(n uint64, r *Request) error {
	m, err := p.Member(n)
	if err != nil {
		return err
	}
	return m.read(r)
}

// read reads the words of a member that may change.
func (m *Member) read(r *Request) error {
	r.head(&m.Head)
	r.number("weight", &m.Weight, 0, weightMax)
	r.plain("backup", "monitor_address", "monitor_port", "vnic_type", "request_sriov")
	return r.end()
}

// DeleteMember removes a member of a pool.
func (p *Pool) DeleteMember(n uint64) error {
	_, err := p.Member(n)
	p.Members = slices.DeleteFunc(p.Members, func(m Member) bool { return m.Number == n })
	return err
}

// ReplaceMembers makes a batch the members of a pool. A member at the same address and port keeps
// its number. With more, the other members stay.
func (d *Document) ReplaceMembers(p *Pool, batch []*Request, more bool) error {
	kept := map[uint64]bool{}
	for _, r := range batch {
		var at Member
		at.Address, at.Port = r.where()
		if m := p.at(at); m != nil {
			if kept[m.Number] {
				return fmt.Errorf("%w: member %s port %d is in the batch twice; leave one out",
					pando.ErrExists, at.Address, at.Port)
			}
			r.drop("address", "protocol_port", "subnet_id")
			if err := m.read(r); err != nil {
				return err
			}
			kept[m.Number] = true
			continue
		}
		n, err := d.CreateMember(p, r)
		if err != nil {
			return err
		}
		kept[n] = true
	}
	if !more {
		p.Members = slices.DeleteFunc(p.Members, func(m Member) bool { return !kept[m.Number] })
	}
	return nil
}

// CreateMonitor adds the health monitor of a pool of the document and returns its number.
func (d *Document) CreateMonitor(p *Pool, r *Request) (uint64, error) {
	if p.Monitor != nil {
		return 0, fmt.Errorf("%w: the pool has a health monitor already; change that one",
			pando.ErrExists)
	}
	m := Monitor{Head: Head{Number: d.next()}, Fall: 3}
	r.drop("pool_id")
	if p.Protocol == udp {
		r.one("type", &m.Type, udpConnect, ping) // members get the protocol of their pool alone
	} else {
		r.one("type", &m.Type, tcp, http, ping)
	}
	if err := m.read(r); err != nil {
		return 0, err
	}
	if m.Type == "" || m.Delay == 0 || m.Timeout == 0 || m.Rise == 0 {
		return 0, fmt.Errorf("%w: healthmonitor: want type, delay, timeout and max_retries",
			pando.ErrInvalid)
	}
	p.Monitor = &m
	return m.Number, nil
}

// The types of health monitors beside tcp.
const (
	http       = "HTTP"        // GET
	udpConnect = "UDP-CONNECT" // a datagram that no ICMP error refuses
	ping       = "PING"        // an ICMP echo
)

// UpdateMonitor changes a health monitor.
func (d *Document) UpdateMonitor(n uint64, r *Request) error {
	p, err := d.PoolOfMonitor(n)
	if err != nil {
		return err
	}
	return p.Monitor.read(r)
}

// read reads the words of a health monitor that may change.
func (m *Monitor) read(r *Request) error {
	const day = 24 * 60 * 60
	r.head(&m.Head)
	r.number("delay", &m.Delay, 1, day)
	r.number("timeout", &m.Timeout, 1, day)
	r.number("max_retries", &m.Rise, 1, 10)
	r.number("max_retries_down", &m.Fall, 1, 10)
	method := "GET"
	if m.Type == http {
		r.one("http_method", &method, "GET")
		r.text("url_path", &m.Path)
		r.one("expected_codes", &m.Codes, "200", "200-399")
		if m.Path != "" && m.Path[0] != '/' {
			r.wrong("url_path", "%.60q: want one that begins with /", m.Path)
		}
	}
	r.plain("http_method", "url_path", "expected_codes", "http_version", "domain_name")
	return r.end()
}

// DeleteMonitor removes a health monitor.
func (d *Document) DeleteMonitor(n uint64) error {
	p, err := d.PoolOfMonitor(n)
	if err == nil {
		p.Monitor = nil
	}
	return err
}
