package decide

import (
	"slices"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// crew holds the instances of one service as they will be, indexed once per decision. Its counts
// follow every change. A decision that moves many instances thus never scans all of them per move.
type crew struct {
	all       []pando.Instance // oldest first, then the new ones
	at        map[pando.InstanceID]int
	counts    map[pando.HostName]scale.Count
	revisions map[int]int            // instances of each revision
	staying   map[pando.HostName]int // of each host: they serve, soon will, or are in reserve
	fellows   map[fellowship]int     // of staying, by revision and use
	held      map[int]int            // instances with the volumes of each ordinal
	warm      []pando.InstanceID     // in phase warm when the decision began
	changes   int                    // so far; a list made before the last one is stale
}

// fellowship is a group of instances that come and leave together.
type fellowship struct {
	host     pando.HostName
	revision int
	reserve  bool
}

func newCrew(all []pando.Instance) *crew {
	c := &crew{all: all}
	c.index()
	return c
}

func (c *crew) index() {
	c.at = make(map[pando.InstanceID]int, len(c.all))
	c.counts, c.revisions, c.warm = map[pando.HostName]scale.Count{}, map[int]int{}, nil
	c.staying, c.held = map[pando.HostName]int{}, map[int]int{}
	c.fellows = map[fellowship]int{}
	c.changes++
	for n := range c.all {
		i := &c.all[n]
		c.at[i.ID] = n
		c.counts[i.Host] = c.counts[i.Host].With(*i)
		c.revisions[i.Revision]++
		c.stay(*i, 1)
		if i.Phase == pando.PhaseWarm {
			c.warm = append(c.warm, i.ID)
		}
	}
}

func (c *crew) get(id pando.InstanceID) (pando.Instance, bool) {
	n, ok := c.at[id]
	if !ok {
		return pando.Instance{}, false
	}
	return c.all[n], true
}

func (c *crew) has(id pando.InstanceID) bool {
	_, ok := c.at[id]
	return ok
}

// put changes an instance, or adds a new one.
func (c *crew) put(i pando.Instance) {
	c.changes++
	if n, ok := c.at[i.ID]; ok {
		old := c.all[n]
		c.counts[old.Host] = c.counts[old.Host].Without(old)
		c.revisions[old.Revision]--
		c.stay(old, -1)
		c.all[n] = i
	} else {
		c.at[i.ID] = len(c.all)
		c.all = append(c.all, i)
	}
	c.counts[i.Host] = c.counts[i.Host].With(i)
	c.revisions[i.Revision]++
	c.stay(i, 1)
}

// stay counts an instance on its host until it drains, and its ordinal while it has its volumes.
func (c *crew) stay(i pando.Instance, n int) {
	if i.Phase.May(pando.PhaseDraining) {
		c.staying[i.Host] += n
		c.fellows[fellowship{i.Host, i.Revision, i.Warm}] += n
	}
	if lifecycle.HasVolumes(i) {
		c.held[i.Ordinal] += n
	}
}

func (c *crew) drop(ids map[pando.InstanceID]bool) {
	c.all = slices.DeleteFunc(c.all, func(i pando.Instance) bool { return ids[i.ID] })
	c.index()
}

// count returns the count of the instances on some hosts.
func (c *crew) count(on func(pando.HostName) bool) scale.Count {
	var sum scale.Count
	for h, n := range c.counts {
		if on(h) {
			sum = sum.Plus(n)
		}
	}
	return sum
}

// reserve returns the warm instances, oldest first.
func (c *crew) reserve() []pando.Instance {
	var out []pando.Instance
	c.warm = slices.DeleteFunc(c.warm, func(id pando.InstanceID) bool {
		i, _ := c.get(id)
		if i.Phase == pando.PhaseWarm {
			out = append(out, i)
		}
		return i.Phase != pando.PhaseWarm
	})
	return out
}
