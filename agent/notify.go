package agent

import (
	"time"

	"pando.run/pando"
)

// notify sends the instances of this host the changes of a commit that concern them. The caller
// holds the lock.
func (c *crews) notify(n news) {
	now := c.config.Clock.Now()
	for _, s := range n.names() {
		if len(c.of[s]) > 0 {
			c.notifyCrew(s, n.services[s], now)
		}
	}
}

func (c *crews) notifyCrew(s pando.ServiceKey, about *change, now time.Time) {
	if len(about.instances) > 0 && c.turnover(s, about.instances) {
		data := map[string]int{"in_rotation": len(c.rotation[s])}
		for _, r := range c.of[s] {
			r.events.send(now, pando.EventPeers, data)
		}
	}
	if about.service {
		svc := c.world.Services[s].V
		spec, _ := c.world.SpecOf(s, svc.Target)
		b := budget{spec.Scale.Min, spec.Scale.Max, svc.Pin}
		for _, r := range c.of[s] {
			r.events.sendBudget(now, b)
		}
	}
	if about.head {
		data := map[string]string{"commit": c.world.Heads[s].V.Commit.String()}
		for _, r := range c.of[s] {
			r.events.send(now, pando.EventState, data)
		}
	}
}

// turnover notes which instances of a service take flows after a commit and reports whether the set
// has changed. It looks at the instances in the commit. The caller holds the lock.
func (c *crews) turnover(s pando.ServiceKey, ids []pando.InstanceID) (changed bool) {
	in := c.rotation[s]
	if in == nil {
		in = map[pando.InstanceID]bool{}
		for _, p := range c.fellows(s) {
			in[p.ID] = true
		}
		c.rotation[s] = in
		return true
	}
	for _, id := range ids {
		i := c.world.Instances[id].V
		if r := c.runners[id]; r != nil && i.Phase != "" {
			i = c.current(r).inst
		}
		if takes := i.Phase.TakesFlows(); takes != in[id] {
			changed = true
			if delete(in, id); takes {
				in[id] = true
			}
		}
	}
	return changed
}
