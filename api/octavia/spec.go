package octavia

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
)

// The values of lb_algorithm.
const (
	roundRobin       = "ROUND_ROBIN"
	leastConnections = "LEAST_CONNECTIONS"
	sourceIP         = "SOURCE_IP"
	sourceIPPort     = "SOURCE_IP_PORT"
)

// leading is a listener that connections may reach, with its pool.
type leading struct {
	Listener
	pool *Pool
}

// serving reports whether a member may get new connections.
func (m Member) serving() bool { return !m.Down && m.Weight > 0 }

// published returns the listeners that connections may reach: each is up, and so is its pool with
// at least one member.
func (d *Document) published() (out []leading) {
	if d.Down {
		return nil
	}
	for _, l := range d.Listeners {
		p, err := d.Pool(l.Pool)
		if err == nil && !l.Down && !p.Down && slices.ContainsFunc(p.Members, Member.serving) {
			out = append(out, leading{l, p})
		}
	}
	return out
}

// Spec returns the spec of the load balancer's service. A load balancer without a published
// listener has a service without a port, which keeps the VIP.
//
// ErrRefused: its listeners lead to pools that are not the same machines. A service has one set of
// endpoints.
func (d *Document) Spec(t pando.Tenant) (pando.Spec, error) {
	doc, err := json.Marshal(d)
	if err != nil {
		return pando.Spec{}, fmt.Errorf("encode a load balancer: %w", err)
	}
	if len(doc) > DocumentBytesMax {
		return pando.Spec{}, fmt.Errorf("%w: the load balancer has %d bytes of objects, at most %d; "+
			"shorten names and descriptions, or create another", pando.ErrTooLarge, len(doc),
			DocumentBytesMax)
	}
	s := pando.Spec{Name: d.key.Service(), Tenant: t, Labels: map[string]string{Label: string(doc)}}
	all := d.published()
	if len(all) == 0 {
		// Taking the place of endpoints, it starts one instance, which sleeps.
		s.Command, s.Scale.Zero = []string{"sleep", "infinity"}, true
		s.Health.Ready.Kind = pando.ProbeStarted
		return s, nil
	}
	if err := endpoints(&s, all); err != nil {
		return s, err
	}
	if s.Health, err = health(all, len(s.Ports) > 1); err != nil {
		return s, err
	}
	// Members differ from instances that Pando starts: all are there already.
	s.Rollout.Surge = len(s.Endpoints)
	s.Balance.By, err = policy(all, s.Endpoints)
	return s, err
}

// endpoints fills the ports and the endpoints of a spec.
func endpoints(s *pando.Spec, all []leading) error {
	first := all[0].pool
	for _, l := range all {
		target, same := l.pool.target()
		if !same && len(all) > 1 {
			return fmt.Errorf("%w: the members of pool %s have several ports, beside another listener; "+
				"give them one protocol_port, or create another load balancer", pando.ErrRefused, l.pool.Name)
		}
		s.Ports = append(s.Ports, pando.Port{Published: l.Port, Target: target,
			Protocol: pando.Protocol(strings.ToLower(l.Protocol))})
	}
	for n, p := range s.Ports {
		for _, o := range s.Ports[:n] {
			if p.Target == o.Target && p.Protocol == o.Protocol {
				return fmt.Errorf("%w: the listeners %d and %d lead to port %d of the members, and replies "+
					"would be ambiguous; create another load balancer", pando.ErrRefused, o.Published,
					p.Published, p.Target)
			}
		}
	}
	_, same := first.target()
	for _, m := range first.Members {
		weight := least(all, m)
		if weight == 0 {
			continue
		}
		e := pando.External{Address: m.Address, Weight: weight}
		if !same {
			e.Port = m.Port
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	if len(s.Endpoints) == 0 {
		return fmt.Errorf("%w: the pools of the listeners have no machine in common, and a load "+
			"balancer has one set of machines; create another load balancer", pando.ErrRefused)
	}
	scale(s.Endpoints)
	return nil
}

// target returns the port of the first serving member, and whether all of them have it.
func (p *Pool) target() (port uint16, same bool) {
	for _, m := range p.Members {
		switch {
		case !m.serving():
		case port == 0:
			port = m.Port
		case port != m.Port:
			return port, false
		}
	}
	return port, true
}

// least returns the smallest weight of a machine in the pools, and 0 if one of them lacks it. So a
// machine serves once it is in every pool, and no longer than that.
func least(all []leading, m Member) int {
	if !m.serving() {
		return 0
	}
	weight := m.Weight
	for _, l := range all[1:] {
		n := 0
		for _, o := range l.pool.Members {
			if o.serving() && (o.Address == m.Address && l.pool != all[0].pool || o.Number == m.Number) {
				n = max(n, o.Weight)
			}
		}
		weight = min(weight, n)
	}
	return weight
}

// scale turns weights of up to 256 into those of endpoints. Equal weights need none, and weights of
// up to 100 stay, so that a new member changes no other.
func scale(all []pando.External) {
	most, equal := 0, true
	for _, e := range all {
		most, equal = max(most, e.Weight), equal && e.Weight == all[0].Weight
	}
	for n := range all {
		switch {
		case equal:
			all[n].Weight = 0
		case most > 100:
			all[n].Weight = max(1, (all[n].Weight*100+most/2)/most)
		}
	}
}

// health returns the probes of the first health monitor. A member without an answer gets no new
// connections; its service never waits for it.
func health(all []leading, several bool) (h pando.Health, err error) {
	h.Ready.Kind = pando.ProbeStarted
	var chosen *Monitor
	for _, l := range all {
		m := l.pool.Monitor
		if m == nil || m.Down {
			continue
		}
		if chosen != nil {
			if !chosen.like(*m) {
				return h, fmt.Errorf("%w: the pools have different health monitors, and a load balancer "+
					"probes each machine once; make them equal, or delete one", pando.ErrRefused)
			}
			continue
		}
		chosen = m
		h.IntervalSeconds, h.TimeoutSeconds = float64(m.Delay), float64(m.Timeout)
		h.Fall = m.Fall
		h.Live.Kind = map[string]pando.ProbeKind{tcp: pando.ProbeTCP, http: pando.ProbeHTTP,
			udpConnect: pando.ProbeUDP, ping: pando.ProbePing}[m.Type]
		if m.Type == http {
			h.Live.Path = or(m.Path, "/")
		}
		if several && h.Live.Dials() != "" {
			h.Live.Port, _ = l.pool.target()
		}
	}
	return h, nil
}

// like reports whether two health monitors probe in the same way.
func (m Monitor) like(o Monitor) bool {
	return m.Type == o.Type && m.Delay == o.Delay && m.Timeout == o.Timeout && m.Fall == o.Fall &&
		m.Path == o.Path
}

// policy returns the policy of the pools. ROUND_ROBIN with weights is the table of weights, because
// the policy of that name ignores them.
func policy(all []leading, endpoints []pando.External) (pando.BalanceBy, error) {
	for _, l := range all {
		if l.pool.Persistence != all[0].pool.Persistence {
			return "", fmt.Errorf("%w: only some of the pools have session_persistence, and a load "+
				"balancer has it as a whole; give it to all, or create another load balancer",
				pando.ErrRefused)
		}
		if l.pool.Algorithm != all[0].pool.Algorithm {
			return "", fmt.Errorf("%w: the pools have %s and %s, and a load balancer has one "+
				"lb_algorithm; create another load balancer", pando.ErrRefused, all[0].pool.Algorithm,
				l.pool.Algorithm)
		}
	}
	switch {
	case all[0].pool.Algorithm == sourceIP, all[0].pool.Persistence == sourceIP:
		return pando.ByClient, nil
	case all[0].pool.Algorithm == leastConnections:
		return pando.ByLeastFlows, nil
	case all[0].pool.Algorithm == roundRobin && endpoints[0].Weight == 0:
		return pando.ByRoundRobin, nil
	}
	return pando.ByHash, nil
}
