package crew

import (
	"maps"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/events"
	"pando.run/pando/world"
)

// Notify sends the instances of this host the changes of a commit that concern them.
func (c *Crews) Notify(_ *world.World, n News) {
	now := c.clock.Now()
	for _, s := range n.Names() {
		if len(c.Of[s]) > 0 {
			c.notifyCrew(s, n.Services[s], now)
		}
	}
}

func (c *Crews) notifyCrew(s pando.ServiceKey, about *Change, now time.Time) {
	if (about.Endpoints || len(about.Instances) > 0) && c.turnover(s, about) {
		data := map[string]int{"in_rotation": len(c.rotation[s])}
		for _, r := range c.Of[s] {
			r.Events.Send(now, pando.EventPeers, data)
		}
	}
	if about.Endpoints {
		e := c.records.World.Endpoints[s].V
		b := events.Budget{Min: e.Scale.Min, Max: e.Scale.Max, Pin: e.Service.Pin}
		for _, r := range c.Of[s] {
			r.Events.SendBudget(now, b)
		}
	}
	if about.head {
		data := map[string]string{"commit": c.records.World.Heads[s].V.Commit.String()}
		for _, r := range c.Of[s] {
			r.Events.Send(now, pando.EventState, data)
		}
	}
}

// turnover notes which instances of a service take flows after a commit and reports whether the set
// has changed. It looks at the instances in the commit, and at all if some are on other hosts.
func (c *Crews) turnover(s pando.ServiceKey, about *Change) (changed bool) {
	in := c.rotation[s]
	e := c.records.World.Endpoints[s].V
	far := len(e.Hosts) > 1 || len(e.Hosts) == 1 && e.Hosts[0] != c.host
	if in == nil || about.Endpoints && far {
		before := in
		in = c.count(s)
		c.rotation[s] = in
		return before == nil || !maps.Equal(before, in)
	}
	for _, id := range about.Instances {
		i := c.records.World.Instances[id].V
		if r := c.ByName[id]; r != nil && i.Phase != "" {
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
