package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"pando.run/pando"
	"pando.run/pando/agent/steer"
)

// crews are the runners of this host. The lock of the records guards them.
type crews struct {
	*records
	steering *steer.Queue
	runners  map[pando.InstanceID]*runner
	of       map[pando.ServiceKey][]*runner // per service, sorted by instance name
	// rotation holds the instances that take flows, as last sent to the crews.
	rotation map[pando.ServiceKey]map[pando.InstanceID]bool
	waves    map[pando.ServiceKey]*wave // of instances drained because they do not answer
}

func newCrews(r *records, q *steer.Queue) *crews {
	return &crews{
		records: r, steering: q, runners: map[pando.InstanceID]*runner{},
		of:       map[pando.ServiceKey][]*runner{},
		rotation: map[pando.ServiceKey]map[pando.InstanceID]bool{},
		waves:    map[pando.ServiceKey]*wave{},
	}
}

// runner returns the runner of an instance of this host.
func (c *crews) runner(i pando.InstanceID) (*runner, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.runners[i]
	if !ok {
		return nil, fmt.Errorf("instance %s: %w on this host", i, pando.ErrNotFound)
	}
	return r, nil
}

// enlist adds a runner. A crew is sorted by instance name. The caller holds the lock.
func (c *crews) enlist(r *runner) {
	c.runners[r.id] = r
	crew := c.of[r.service]
	at, _ := slices.BinarySearchFunc(crew, r.id, func(o *runner, id pando.InstanceID) int {
		return cmp.Compare(o.id, id)
	})
	c.of[r.service] = slices.Insert(crew, at, r)
}

// delist removes a runner that has ended.
func (c *crews) delist(r *runner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runners, r.id)
	crew := slices.DeleteFunc(c.of[r.service], func(o *runner) bool { return o == r })
	if c.of[r.service] = crew; len(crew) == 0 {
		delete(c.of, r.service)
		delete(c.rotation, r.service)
		delete(c.waves, r.service)
	}
}

// everyRunner returns the runners sorted by instance name, so that their order does not depend on a
// map. The caller holds the lock.
func (c *crews) everyRunner() (out []*runner) {
	for _, id := range slices.Sorted(maps.Keys(c.runners)) {
		out = append(out, c.runners[id])
	}
	return out
}

// wakeAll makes every runner look again.
func (c *crews) wakeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.everyRunner() {
		r.post(look{})
	}
}

// shown stores the state of a runner, and steers the service again if its table differs.
func (c *crews) shown(r *runner, now status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := r.shown
	r.shown = now
	if movesFlows(was, now) {
		c.steering.Changed(r.service)
	}
}

// statusOf returns the state of a runner, with a step of control that the runner has not received
// yet.
func (c *crews) statusOf(r *runner) status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current(r)
}

// current returns the state of a runner, with a step of control that the runner has not received
// yet. The caller holds the lock.
func (c *crews) current(r *runner) status {
	now := r.shown
	if v, ok := c.world.Instances[r.id]; ok {
		now.inst, _ = controlled(now.inst, v.V)
	}
	return now
}

// fellows lists the instances of a service that take flows. The caller holds the lock.
func (c *crews) fellows(s pando.ServiceKey) []pando.InstanceStatus {
	out := []pando.InstanceStatus{}
	e := c.world.Endpoints[s].V
	listed := make(map[pando.InstanceID]bool, len(e.Seats))
	for _, t := range e.Seats {
		listed[t.Instance] = true
		i := pando.Instance{
			ID: t.Instance, Service: s, Host: e.HostOf(t), Revision: t.Revision, Weight: t.Weight,
			Phase: t.Phase, Since: t.Since,
		}
		if r, ok := c.runners[t.Instance]; ok {
			i = c.current(r).inst
		}
		if i.Phase.TakesFlows() {
			out = append(out, pando.InstanceStatus{Instance: i})
		}
	}
	for _, r := range c.of[s] {
		if i := c.current(r).inst; i.Phase.TakesFlows() && !listed[r.id] {
			out = append(out, pando.InstanceStatus{Instance: i})
		}
	}
	return out
}
