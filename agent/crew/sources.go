package crew

import (
	"slices"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/supply"
	"pando.run/pando/spec/config"
	"pando.run/pando/world"
)

// sources are the services that templates of configs here name, with the runners of those configs.
// A change of any other service wakes none of them. The lock of the records guards it.
type sources map[pando.ServiceKey]map[*runner.Runner]bool

// FollowSources notes the services that the templates of a runner's spec name, before they are
// read.
func (c *Crews) FollowSources(r *runner.Runner, spec pando.Spec) {
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
			k := pando.ServiceKey{Tenant: r.Service.Tenant, Name: name}
			if c.sources[k] == nil {
				c.sources[k] = map[*runner.Runner]bool{}
				c.steering.Changed(k) // its instances come within reach
			}
			c.sources[k][r] = true
		}
	}
}

// unfollow forgets the services of a runner.
func (c *Crews) unfollow(r *runner.Runner) {
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

// Reachable returns the addresses of a service's instances that its tenant may reach from here:
// ordinals, and those that a config here lists.
func (c *Crews) Reachable(w *world.World, e pando.Endpoints) []pando.Named {
	k := e.Service.ServiceKey
	if len(c.sources[k]) == 0 {
		return e.Names
	}
	out := slices.Clone(e.Names)
	for _, s := range e.Seats {
		v4, v6, ok := supply.AddressesOf(w, e, s)
		if ok && len(out) < supply.ListedMax {
			out = append(out, pando.Named{IP4: v4, IP6: v6})
		}
	}
	return out
}

// ConfigsOf returns the runners whose templates name a service.
func (c *Crews) ConfigsOf(_ *world.World, s pando.ServiceKey) map[*runner.Runner]bool {
	return c.sources[s]
}
