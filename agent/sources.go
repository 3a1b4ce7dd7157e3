package agent

import (
	"cmp"
	"net/netip"
	"slices"

	"pando.run/pando"
	"pando.run/pando/spec/config"
	"pando.run/pando/world"
)

// sources are the services that templates of configs here name, with the runners of those configs.
// A change of any other service wakes none of them. The lock of the records guards it.
type sources map[pando.ServiceKey]map[*runner]bool

// sourced is the largest number of instances of one service that a template lists.
const sourced = pando.EndpointsMax

// follow notes the services that the templates of a runner's spec name, before they are read.
func (c *crews) follow(r *runner, spec pando.Spec) {
	if !spec.Templated() {
		return
	}
	c.records.Lock()
	defer c.records.Unlock()
	c.unfollow(r)
	for _, one := range spec.Configs {
		if !one.Template {
			continue
		}
		t, err := config.Parse(one.Name, one.Text)
		if err != nil {
			continue // rendering reports it
		}
		for _, name := range t.Services() {
			k := pando.ServiceKey{Tenant: r.service.Tenant, Name: name}
			if c.sources[k] == nil {
				c.sources[k] = map[*runner]bool{}
				c.steering.Changed(k) // its instances come within reach
			}
			c.sources[k][r] = true
		}
	}
}

// unfollow forgets the services of a runner. The caller holds the lock.
func (c *crews) unfollow(r *runner) {
	for k, users := range c.sources {
		if !users[r] {
			continue
		}
		if delete(users, r); len(users) == 0 {
			delete(c.sources, k)
			c.steering.Changed(k)
		}
	}
}

// reachable returns the addresses of a service's instances that its tenant may reach from here:
// ordinals, and those that a config here lists. The caller holds the lock.
func (c *crews) reachable(e pando.Endpoints) []pando.Named {
	k := e.Service.ServiceKey
	if len(c.sources[k]) == 0 {
		return e.Names
	}
	out := slices.Clone(e.Names)
	for _, s := range e.Seats {
		v4, v6, ok := addressesOf(c.records.World, e, s)
		if ok && len(out) < sourced {
			out = append(out, pando.Named{IP4: v4, IP6: v6})
		}
	}
	return out
}

// addressesOf returns the addresses of a seat that takes flows.
func addressesOf(w *world.World, e pando.Endpoints, s pando.Seat) (v4, v6 netip.Addr, ok bool) {
	if !s.Phase.TakesFlows() {
		return v4, v6, false
	}
	name := e.HostOf(s)
	slot := w.Members[name].V.Slot
	if h, here := w.Hosts[name]; here {
		slot = h.V.Slot
	}
	return s.Addresses(slot)
}

// facts returns the view of an instance's templates. It has the named services alone.
func (t templates) facts(
	i pando.Instance, spec pando.Spec, secrets map[string][]byte, names []pando.ServiceName,
) config.Facts {
	f := config.Facts{
		Self: config.Self{
			Service: string(i.Service.Name), Tenant: string(i.Service.Tenant), Instance: string(i.ID),
			Host: string(t.a.Host.Name), Ordinal: max(0, i.Ordinal-1), Ports: portsOf(spec.Ports),
			Environment: spec.Environment, Labels: spec.Labels,
		},
		Services: map[pando.ServiceName]config.Service{}, Secrets: secrets,
	}
	t.a.records.Read(func(w *world.World) {
		for _, name := range names {
			k := pando.ServiceKey{Tenant: i.Service.Tenant, Name: name}
			if e, ok := w.Endpoints[k]; ok && !e.V.Service.Removing {
				f.Services[name] = serviceOf(w, e.V)
			}
		}
	})
	return f
}

func serviceOf(w *world.World, e pando.Endpoints) config.Service {
	out := config.Service{Name: string(e.Service.Name), Ports: portsOf(e.Ports)}
	if e.Service.VIP4.IsValid() {
		out.VIP = e.Service.VIP4.String()
	}
	if e.Service.VIP6.IsValid() {
		out.VIP6 = e.Service.VIP6.String()
	}
	port := 0
	if len(e.Ports) > 0 {
		port = int(e.Ports[0].Target)
	}
	for _, s := range e.Seats {
		v4, v6, ok := addressesOf(w, e, s)
		if !ok || len(out.Endpoints) == sourced {
			continue
		}
		out.Endpoints = append(out.Endpoints, config.Endpoint{
			Name: string(s.Instance), Host: string(e.HostOf(s)), IP: v4.String(), IP6: v6.String(),
			Port: port, Weight: s.Weight, Revision: s.Revision,
		})
	}
	slices.SortFunc(out.Endpoints, func(a, b config.Endpoint) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return out
}

func portsOf(all []pando.Port) (out []config.Port) {
	for _, p := range all {
		out = append(out, config.Port{Published: int(p.Published), Target: int(p.Target),
			Protocol: string(p.Protocol)})
	}
	return out
}
