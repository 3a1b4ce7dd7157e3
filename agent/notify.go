package agent

import (
	"maps"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/events"
)

// notify sends the instances of this host the changes of a commit that concern them. The caller
// holds the lock.
func (c *crews) notify(n news) {
	now := c.clock.Now()
	for _, s := range n.names() {
		if len(c.of[s]) > 0 {
			c.notifyCrew(s, n.services[s], now)
		}
	}
}

func (c *crews) notifyCrew(s pando.ServiceKey, about *change, now time.Time) {
	if (about.endpoints || len(about.instances) > 0) && c.turnover(s, about) {
		data := map[string]int{"in_rotation": len(c.rotation[s])}
		for _, r := range c.of[s] {
			r.Events.Send(now, pando.EventPeers, data)
		}
	}
	if about.endpoints {
		e := c.records.World.Endpoints[s].V
		b := events.Budget{Min: e.Scale.Min, Max: e.Scale.Max, Pin: e.Service.Pin}
		for _, r := range c.of[s] {
			r.Events.SendBudget(now, b)
		}
	}
	if about.head {
		data := map[string]string{"commit": c.records.World.Heads[s].V.Commit.String()}
		for _, r := range c.of[s] {
			r.Events.Send(now, pando.EventState, data)
		}
	}
}

// turnover notes which instances of a service take flows after a commit and reports whether the set
// has changed. It looks at the instances in the commit, and at all if some are on other hosts. The
// caller holds the lock.
func (c *crews) turnover(s pando.ServiceKey, about *change) (changed bool) {
	in := c.rotation[s]
	e := c.records.World.Endpoints[s].V
	far := len(e.Hosts) > 1 || len(e.Hosts) == 1 && e.Hosts[0] != c.host
	if in == nil || about.endpoints && far {
		before := in
		in = c.count(s)
		c.rotation[s] = in
		return before == nil || !maps.Equal(before, in)
	}
	for _, id := range about.instances {
		i := c.records.World.Instances[id].V
		if r := c.runners[id]; r != nil && i.Phase != "" {
			i = r.StatusIn(c.records.World).Instance
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
