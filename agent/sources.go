package agent

import (
	"slices"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/supply"
	"pando.run/pando/spec/config"
)

// sources are the services that templates of configs here name, with the runners of those configs.
// A change of any other service wakes none of them. The lock of the records guards it.
type sources map[pando.ServiceKey]map[*runner.Runner]bool

// FollowSources notes the services that the templates of a runner's spec name, before they are read.
func (c *crews) FollowSources(r *runner.Runner, spec pando.Spec) {
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

// unfollow forgets the services of a runner. The caller holds the lock.
func (c *crews) unfollow(r *runner.Runner) {
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
		v4, v6, ok := supply.AddressesOf(c.records.World, e, s)
		if ok && len(out) < supply.ListedMax {
			out = append(out, pando.Named{IP4: v4, IP6: v6})
		}
	}
	return out
}
