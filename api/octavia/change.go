package octavia

import (
	"encoding/json"
	"fmt"
	"slices"

	"pando.run/pando"
)

// The protocols of listeners and pools.
const tcp, udp = "TCP", "UDP"

// Create returns the document of a new load balancer, with the listeners and pools in its request.
func Create(key Key, r *Request) (d Document, err error) {
	d.key = key
	r.text("vip_subnet_id", &d.Subnet)
	r.text("vip_network_id", &d.Network)
	var provider string
	r.one("provider", &provider, "pando", "octavia")
	r.plain("vip_address", "vip_port_id", "vip_qos_policy_id", "flavor_id", "availability_zone",
		"additional_vips", "vip_sg_ids", "vip_vnic_type")
	var listeners, pools []json.RawMessage
	take(r, "listeners", "a list of listeners", &listeners)
	take(r, "pools", "a list of pools", &pools)
	if err := d.Update(r); err != nil {
		return d, err
	}
	all, err := objects(PoolKind, pools)
	if err != nil {
		return d, err
	}
	for _, p := range all {
		if _, err := d.CreatePool(p); err != nil {
			return d, err
		}
	}
	if all, err = objects(ListenerKind, listeners); err != nil {
		return d, err
	}
	for _, l := range all {
		if _, err := d.CreateListener(l); err != nil {
			return d, err
		}
	}
	return d, nil
}

// Update changes the load balancer itself.
func (d *Document) Update(r *Request) error {
	r.head(&d.Head)
	r.plain("vip_qos_policy_id")
	return r.end()
}

// CreateListener adds a listener and returns its number.
func (d *Document) CreateListener(r *Request) (uint64, error) {
	l := Listener{Head: Head{Number: d.next()}}
	r.drop("loadbalancer_id")
	r.one("protocol", &l.Protocol, tcp, udp)
	r.port("protocol_port", &l.Port)
	var pool json.RawMessage
	take(r, "default_pool", "a pool", &pool)
	if err := d.listener(r, &l); err != nil {
		return 0, err
	}
	switch {
	case l.Protocol == "" || l.Port == 0:
		return 0, fmt.Errorf("%w: listener: want protocol and protocol_port", pando.ErrInvalid)
	case len(d.Listeners) >= ListenersMax:
		return 0, fmt.Errorf("%w: %d listeners, and a load balancer has at most %d: create another",
			pando.ErrRefused, len(d.Listeners), ListenersMax)
	}
	for _, o := range d.Listeners {
		if o.Port == l.Port && o.Protocol == l.Protocol {
			return 0, fmt.Errorf("%w: another listener of this load balancer has the port %d; choose "+
				"another", pando.ErrExists, l.Port)
		}
	}
	if pool != nil {
		if err := d.poolWithin(pool, &l); err != nil {
			return 0, err
		}
	}
	d.Listeners = append(d.Listeners, l)
	return l.Number, nil
}

// poolWithin makes the default pool in the request of a listener. A name alone refers to a pool of
// the load balancer.
func (d *Document) poolWithin(raw json.RawMessage, l *Listener) error {
	r, err := object(PoolKind, raw)
	if err != nil {
		return err
	}
	if name := r.Text("name"); len(r.words) == 1 && name != "" {
		for _, p := range d.Pools {
			if p.Name == name {
				l.Pool = p.Number
				return d.fits(*l)
			}
		}
	}
	if r.words["protocol"] == nil {
		r.words["protocol"], _ = json.Marshal(l.Protocol)
	}
	if l.Pool, err = d.CreatePool(r); err != nil {
		return err
	}
	return d.fits(*l)
}

// UpdateListener changes a listener.
func (d *Document) UpdateListener(n uint64, r *Request) error {
	l, err := d.Listener(n)
	if err != nil {
		return err
	}
	return d.listener(r, l)
}

// listener reads the words of a listener that may change.
func (d *Document) listener(r *Request, l *Listener) error {
	r.head(&l.Head)
	if _, ok := r.words["default_pool_id"]; ok {
		var id string
		if l.Pool = 0; take(r, "default_pool_id", "an id", &id) && id != "" {
			n, err := d.own(PoolKind, id)
			if err != nil {
				return err
			}
			l.Pool = n
		}
	}
	limit := -1
	if r.number("connection_limit", &limit, -1, 1<<31-1); limit != -1 {
		r.wrong("connection_limit", "%d: want -1, for no limit", limit)
	}
	// Packets pass no proxy, so these times have nothing to bound.
	r.drop("timeout_client_data", "timeout_member_connect", "timeout_member_data",
		"timeout_tcp_inspect")
	r.plain("default_tls_container_ref", "sni_container_refs", "insert_headers", "l7policies",
		"allowed_cidrs", "client_ca_tls_container_ref", "client_crl_container_ref", "tls_ciphers",
		"tls_versions", "alpn_protocols", "hsts_include_subdomains", "hsts_max_age", "hsts_preload")
	var auth string
	r.one("client_authentication", &auth, "NONE")
	if err := r.end(); err != nil {
		return err
	}
	return d.fits(*l)
}

// fits returns nil if a listener and its pool have one protocol.
func (d *Document) fits(l Listener) error {
	if l.Pool == 0 {
		return nil
	}
	p, err := d.Pool(l.Pool)
	if err == nil && p.Protocol != l.Protocol && l.Protocol != "" {
		err = fmt.Errorf("%w: a %s listener and a %s pool: give both one protocol", pando.ErrConflict,
			l.Protocol, p.Protocol)
	}
	return err
}

// DeleteListener removes a listener. Its pool stays.
func (d *Document) DeleteListener(n uint64) error {
	_, err := d.Listener(n)
	d.Listeners = slices.DeleteFunc(d.Listeners, func(l Listener) bool { return l.Number == n })
	return err
}

// CreatePool adds a pool and returns its number. With listener_id it becomes the default pool of
// that listener.
func (d *Document) CreatePool(r *Request) (uint64, error) {
	p := Pool{Head: Head{Number: d.next()}}
	var listener *Listener
	if id := r.Text("listener_id"); id != "" {
		n, err := d.own(ListenerKind, id)
		if err != nil {
			return 0, err
		}
		if listener, err = d.Listener(n); err != nil {
			return 0, err
		}
		if listener.Pool != 0 {
			return 0, fmt.Errorf("%w: listener %s has a default pool already; change or delete that pool",
				pando.ErrExists, id)
		}
	}
	r.drop("loadbalancer_id", "listener_id")
	r.one("protocol", &p.Protocol, tcp, udp)
	var members []json.RawMessage
	var monitor json.RawMessage
	take(r, "members", "a list of members", &members)
	take(r, "healthmonitor", "a health monitor", &monitor)
	switch err := p.read(r); {
	case err != nil:
		return 0, err
	case p.Protocol == "" || p.Algorithm == "":
		return 0, fmt.Errorf("%w: pool: want protocol and lb_algorithm", pando.ErrInvalid)
	case len(d.Pools) >= PoolsMax:
		return 0, fmt.Errorf("%w: %d pools, and a load balancer has at most %d: create another",
			pando.ErrRefused, len(d.Pools), PoolsMax)
	}
	all, err := objects(MemberKind, members)
	if err != nil {
		return 0, err
	}
	for _, m := range all {
		if _, err := d.CreateMember(&p, m); err != nil {
			return 0, err
		}
	}
	if monitor != nil {
		m, err := object(MonitorKind, monitor)
		if err != nil {
			return 0, err
		}
		if _, err := d.CreateMonitor(&p, m); err != nil {
			return 0, err
		}
	}
	d.Pools = append(d.Pools, p)
	if listener != nil {
		listener.Pool = p.Number
		return p.Number, d.fits(*listener)
	}
	return p.Number, nil
}

// UpdatePool changes a pool.
func (d *Document) UpdatePool(n uint64, r *Request) error {
	p, err := d.Pool(n)
	if err != nil {
		return err
	}
	return p.read(r)
}

// read reads the words of a pool that may change.
func (p *Pool) read(r *Request) error {
	r.head(&p.Head)
	r.one("lb_algorithm", &p.Algorithm, roundRobin, leastConnections, sourceIP, sourceIPPort)
	p.readPersistence(r)
	r.plain("ca_tls_container_ref", "crl_container_ref", "tls_container_ref",
		"tls_enabled", "tls_ciphers", "tls_versions", "alpn_protocols")
	return r.end()
}

// readPersistence reads session_persistence. Only that by the client's address exists: others need
// a proxy that reads HTTP. An update with null ends it.
func (p *Pool) readPersistence(r *Request) {
	if _, named := r.words["session_persistence"]; !named {
		return
	}
	p.Persistence = ""
	var raw json.RawMessage
	if !take(r, "session_persistence", "an object", &raw) {
		return
	}
	inner, err := object(r.kind, raw)
	if err != nil {
		r.wrong("session_persistence", "want an object")
		return
	}
	inner.one("type", &p.Persistence, sourceIP)
	inner.plain("cookie_name", "persistence_timeout", "persistence_granularity")
	if len(inner.words) == 0 && inner.err == nil && p.Persistence == "" {
		return // {} asks for none
	}
	if err := inner.end(); err != nil && r.err == nil {
		r.err = fmt.Errorf("session_persistence: %w", err)
	}
}

// DeletePool removes a pool with its members. Its listeners stay without one.
func (d *Document) DeletePool(n uint64) error {
	_, err := d.Pool(n)
	d.Pools = slices.DeleteFunc(d.Pools, func(p Pool) bool { return p.Number == n })
	for i := range d.Listeners {
		if d.Listeners[i].Pool == n {
			d.Listeners[i].Pool = 0
		}
	}
	return err
}
