package octavia

import (
	"slices"

	"pando.run/pando"
)

// Object is an object in the JSON of Octavia.
type Object map[string]any

// View shows a load balancer and its objects, with the status of its service.
type View struct {
	Document
	Status pando.ServiceStatus
	// Behind is true while a host steers by an older change.
	Behind bool

	serving map[uint64]bool // pools of published listeners
}

// NewView returns the view of a service. ok is false if the service is no load balancer.
func NewView(st pando.ServiceStatus) (v View, ok bool) {
	v.Status = st
	if v.Document, ok = Of(st.Spec); !ok {
		return v, false
	}
	v.serving = map[uint64]bool{}
	for _, l := range v.published() {
		v.serving[l.pool.Number] = true
	}
	return v, true
}

// id returns the id of an object, or nil for the number 0.
func (v View) id(k Kind, n uint64) any {
	if n == 0 && k != LoadBalancerKind {
		return nil
	}
	return v.key.ID(k, n)
}

// refer returns references to objects of one kind.
func refer[T any](v View, k Kind, all []T, number func(T) uint64) []Object {
	out := []Object{}
	for _, one := range all {
		out = append(out, Object{"id": v.key.ID(k, number(one))})
	}
	return out
}

// common returns the words that all objects have.
func (v View) common(k Kind, h Head, operating string) Object {
	tags := h.Tags
	if tags == nil {
		tags = []string{}
	}
	updated := any(nil)
	if !v.Status.Asked.IsZero() {
		updated = v.Status.Asked.UTC().Format("2006-01-02T15:04:05")
	}
	if h.Down {
		operating = "OFFLINE"
	}
	return Object{
		"id": v.key.ID(k, h.Number), "name": h.Name, "description": h.Description, "tags": tags,
		"admin_state_up": !h.Down, "project_id": string(v.Status.Tenant),
		"tenant_id": string(v.Status.Tenant), "provisioning_status": v.provisioning(),
		"operating_status": operating, "created_at": nil, "updated_at": updated,
	}
}

// provisioning returns the progress of the newest change.
func (v View) provisioning() string {
	switch st := v.Status; {
	case st.Removing:
		return "PENDING_DELETE"
	case st.Target == st.Current && !v.Behind:
		return "ACTIVE"
	case st.Problem != nil && st.Target != st.Current:
		return "ERROR"
	case st.Current == 0:
		return "PENDING_CREATE"
	}
	return "PENDING_UPDATE"
}

// LoadBalancer returns the load balancer.
func (v View) LoadBalancer() Object {
	o := v.common(LoadBalancerKind, v.Head, v.operating())
	o["vip_address"] = v.Status.VIP
	o["vip_subnet_id"], o["vip_network_id"] = orNil(v.Subnet), orNil(v.Network)
	for _, word := range []string{"vip_port_id", "vip_qos_policy_id", "flavor_id",
		"availability_zone"} {
		o[word] = nil
	}
	o["additional_vips"], o["provider"] = []Object{}, "pando"
	o["listeners"] = refer(v, ListenerKind, v.Listeners, func(l Listener) uint64 { return l.Number })
	o["pools"] = refer(v, PoolKind, v.Pools, func(p Pool) uint64 { return p.Number })
	return o
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// self returns the reference to the load balancer.
func (v View) self() []Object { return []Object{{"id": v.key.ID(LoadBalancerKind, 0)}} }

// Listener returns a listener.
func (v View) Listener(l Listener) Object {
	o := v.common(ListenerKind, l.Head, v.operatingListener(l))
	o["protocol"], o["protocol_port"], o["connection_limit"] = l.Protocol, l.Port, -1
	o["default_pool_id"], o["loadbalancers"] = v.id(PoolKind, l.Pool), v.self()
	o["insert_headers"], o["l7policies"], o["sni_container_refs"] = Object{}, []Object{}, []string{}
	o["default_tls_container_ref"], o["allowed_cidrs"] = nil, nil
	return o
}

// Pool returns a pool.
func (v View) Pool(p Pool) Object {
	o := v.common(PoolKind, p.Head, v.operatingPool(p))
	o["protocol"], o["lb_algorithm"], o["session_persistence"] = p.Protocol, p.Algorithm, nil
	if p.Persistence != "" {
		o["session_persistence"] = Object{"type": p.Persistence, "cookie_name": nil,
			"persistence_timeout": nil, "persistence_granularity": nil}
	}
	o["loadbalancers"], o["healthmonitor_id"] = v.self(), nil
	if p.Monitor != nil {
		o["healthmonitor_id"] = v.id(MonitorKind, p.Monitor.Number)
	}
	o["members"] = refer(v, MemberKind, p.Members, func(m Member) uint64 { return m.Number })
	of := slices.DeleteFunc(slices.Clone(v.Listeners), func(l Listener) bool {
		return l.Pool != p.Number
	})
	o["listeners"] = refer(v, ListenerKind, of, func(l Listener) uint64 { return l.Number })
	o["tls_enabled"] = false
	return o
}

// Member returns a member of a pool.
func (v View) Member(p Pool, m Member) Object {
	o := v.common(MemberKind, m.Head, v.operatingMember(p, m))
	o["address"], o["protocol_port"], o["weight"] = m.Address.String(), m.Port, m.Weight
	o["subnet_id"], o["backup"] = orNil(m.Subnet), false
	o["monitor_address"], o["monitor_port"] = nil, nil
	return o
}

// Monitor returns the health monitor of a pool.
func (v View) Monitor(p Pool) Object {
	m := *p.Monitor
	o := v.common(MonitorKind, m.Head, "ONLINE")
	o["type"], o["delay"], o["timeout"] = m.Type, m.Delay, m.Timeout
	o["max_retries"], o["max_retries_down"] = m.Rise, m.Fall
	o["pools"] = []Object{{"id": v.key.ID(PoolKind, p.Number)}}
	o["http_method"], o["url_path"], o["expected_codes"] = nil, nil, nil
	if m.Type == http {
		o["http_method"], o["url_path"], o["expected_codes"] = "GET", or(m.Path, "/"), or(m.Codes, "200")
	}
	o["http_version"], o["domain_name"] = nil, nil
	return o
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// operatingMember returns the state of the instance that stands for a member.
func (v View) operatingMember(p Pool, m Member) string {
	switch {
	case m.Down || !v.serving[p.Number]:
		return "OFFLINE"
	case m.Weight == 0:
		return "DRAINING"
	}
	ordinal := 1 + slices.IndexFunc(v.Status.Spec.Endpoints, func(e pando.External) bool {
		return e.Address == m.Address && (e.Port == 0 || e.Port == m.Port)
	})
	newest, state := -1, "OFFLINE"
	for _, i := range v.Status.Instances {
		if ordinal == 0 || i.Ordinal != ordinal || !i.Phase.TakesFlows() || i.Revision < newest {
			continue
		}
		newest = i.Revision
		switch {
		case i.Weight == 0:
			state = "ERROR"
		case p.Monitor == nil || p.Monitor.Down:
			state = "NO_MONITOR"
		default:
			state = "ONLINE"
		}
	}
	return state
}

// operatingPool sums its members up.
func (v View) operatingPool(p Pool) string {
	var all []string
	for _, m := range p.Members {
		if m.serving() {
			all = append(all, v.operatingMember(p, m))
		}
	}
	return sum(all)
}

// sum returns the state of a whole by those of its parts.
func sum(all []string) string {
	well := 0
	for _, s := range all {
		if s == "ONLINE" || s == "NO_MONITOR" {
			well++
		}
	}
	switch {
	case len(all) == 0:
		return "OFFLINE"
	case well == len(all):
		return "ONLINE"
	case well == 0 && slices.Contains(all, "ERROR"):
		return "ERROR"
	case well == 0 && !slices.Contains(all, "DEGRADED"):
		return "OFFLINE"
	}
	return "DEGRADED"
}

func (v View) operatingListener(l Listener) string {
	p, err := v.Document.Pool(l.Pool)
	if err != nil || v.Down || l.Down {
		return "OFFLINE"
	}
	return v.operatingPool(*p)
}

func (v View) operating() string {
	var all []string
	for _, l := range v.Listeners {
		if !l.Down {
			all = append(all, v.operatingListener(l))
		}
	}
	return sum(all)
}

// Tree returns the states of the load balancer and of its objects below it.
func (v View) Tree() Object {
	short := func(o Object, more Object) Object {
		for _, word := range []string{"id", "name", "provisioning_status", "operating_status"} {
			more[word] = o[word]
		}
		return more
	}
	pool := func(p Pool) Object {
		members := []Object{}
		for _, m := range p.Members {
			members = append(members, short(v.Member(p, m),
				Object{"address": m.Address.String(), "protocol_port": m.Port}))
		}
		more := Object{"members": members}
		if p.Monitor != nil {
			more["healthmonitor"] = short(v.Monitor(p), Object{"type": p.Monitor.Type})
		}
		return short(v.Pool(p), more)
	}
	listeners := []Object{}
	for _, l := range v.Listeners {
		pools := []Object{}
		if p, err := v.Document.Pool(l.Pool); err == nil {
			pools = append(pools, pool(*p))
		}
		listeners = append(listeners, short(v.Listener(l), Object{"pools": pools}))
	}
	return short(v.LoadBalancer(), Object{"listeners": listeners})
}

// Objects returns all objects of a kind, in the order of their numbers. Members are those of a pool
// (Members).
func (v View) Objects(k Kind) (out []Object) {
	switch k {
	case LoadBalancerKind:
		return []Object{v.LoadBalancer()}
	case ListenerKind:
		for _, l := range v.Listeners {
			out = append(out, v.Listener(l))
		}
	case PoolKind, MonitorKind:
		for _, p := range v.Pools {
			if k == PoolKind {
				out = append(out, v.Pool(p))
			} else if p.Monitor != nil {
				out = append(out, v.Monitor(p))
			}
		}
	}
	return out
}

// Members returns the members of a pool.
func (v View) Members(p Pool) []Object {
	out := []Object{}
	for _, m := range p.Members {
		out = append(out, v.Member(p, m))
	}
	return out
}

// Find returns an object by its kind and number. A member is found in a pool.
func (v View) Find(k Kind, pool, n uint64) (Object, error) {
	switch k {
	case ListenerKind:
		l, err := v.Document.Listener(n)
		if err != nil {
			return nil, err
		}
		return v.Listener(*l), nil
	case PoolKind:
		p, err := v.Document.Pool(n)
		if err != nil {
			return nil, err
		}
		return v.Pool(*p), nil
	case MemberKind:
		p, err := v.Document.Pool(pool)
		if err != nil {
			return nil, err
		}
		m, err := p.Member(n)
		if err != nil {
			return nil, err
		}
		return v.Member(*p, *m), nil
	case MonitorKind:
		p, err := v.PoolOfMonitor(n)
		if err != nil {
			return nil, err
		}
		return v.Monitor(*p), nil
	}
	return v.LoadBalancer(), nil
}
