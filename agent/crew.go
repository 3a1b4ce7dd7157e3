package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

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
	sources  sources
	at       map[netip.Addr]*runner // by the addresses of their sandboxes
}

func newCrews(r *records, q *steer.Queue) *crews {
	return &crews{
		records: r, steering: q, runners: map[pando.InstanceID]*runner{},
		of:       map[pando.ServiceKey][]*runner{},
		rotation: map[pando.ServiceKey]map[pando.InstanceID]bool{},
		sources:  sources{}, at: map[netip.Addr]*runner{},
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
	defer c.announce()
	delete(c.runners, r.id)
	c.locate(r, r.shown.link, pando.Link{})
	c.unfollow(r)
	crew := slices.DeleteFunc(c.of[r.service], func(o *runner) bool { return o == r })
	if c.of[r.service] = crew; len(crew) == 0 {
		delete(c.of, r.service)
		delete(c.rotation, r.service)
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
	c.locate(r, was.link, now.link)
	if movesFlows(was, now) {
		c.steering.Changed(r.service)
	}
}

// locate moves a runner to the addresses of its sandbox. The caller holds the lock.
func (c *crews) locate(r *runner, was, now pando.Link) {
	for _, a := range []netip.Addr{was.IP4, was.IP6} {
		if c.at[a] == r {
			delete(c.at, a)
		}
	}
	for _, a := range []netip.Addr{now.IP4, now.IP6} {
		if a.IsValid() {
			c.at[a] = r
		}
	}
}

// InstanceAt returns the service of the instance of this host with an address, and its spec.
func (c *crews) InstanceAt(a netip.Addr) (s pando.ServiceKey, spec pando.Spec, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.at[a]
	if !ok {
		return s, spec, false
	}
	spec, _ = c.world.SpecOf(r.service, r.shown.inst.Revision)
	return r.service, spec, true
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

// fellows returns the youngest instances of a service that take flows, at most PeersMax, oldest
// first, and the number of all that do. It includes the asker if that takes flows. The caller
// holds the lock.
func (c *crews) fellows(asker *runner) (youngest []pando.InstanceStatus, all int) {
	s := asker.service
	e := c.world.Endpoints[s].V
	youngest = make([]pando.InstanceStatus, 0, pando.PeersMax+1)
	seen := false
	add := func(i pando.Instance) {
		if i.Phase.TakesFlows() {
			youngest = append(youngest, pando.InstanceStatus{Instance: i})
			seen = seen || i.ID == asker.id
		}
	}
	for n := len(e.Seats) - 1; n >= 0 && len(youngest) < pando.PeersMax; n-- {
		add(c.seated(s, e, e.Seats[n]))
	}
	if !seen {
		add(c.current(asker).inst)
	}
	slices.Reverse(youngest)
	if all = len(c.takers(s)); len(youngest) < pando.PeersMax {
		all = len(youngest)
	}
	return youngest, all
}

// seated returns the instance of a seat as this host has it. The caller holds the lock.
func (c *crews) seated(s pando.ServiceKey, e pando.Endpoints, t pando.Seat) pando.Instance {
	if r, ok := c.runners[t.Instance]; ok {
		return c.current(r).inst
	}
	return pando.Instance{
		ID: t.Instance, Service: s, Host: e.HostOf(t), Revision: t.Revision, Weight: t.Weight,
		Phase: t.Phase, Since: t.Since,
	}
}

// takers returns the instances of a service that take flows, as last sent to its crew. The caller
// holds the lock.
func (c *crews) takers(s pando.ServiceKey) map[pando.InstanceID]bool {
	if c.rotation[s] == nil {
		c.rotation[s] = c.count(s)
	}
	return c.rotation[s]
}

// count finds the instances of a service that take flows. The caller holds the lock.
func (c *crews) count(s pando.ServiceKey) map[pando.InstanceID]bool {
	in := map[pando.InstanceID]bool{}
	for _, t := range c.world.Endpoints[s].V.Seats {
		if c.runners[t.Instance] == nil && t.Phase.TakesFlows() {
			in[t.Instance] = true
		}
	}
	for _, r := range c.of[s] {
		if c.current(r).inst.Phase.TakesFlows() {
			in[r.id] = true
		}
	}
	return in
}

// silentMax bounds the instances that the losses of a host name.
const silentMax = 8

// silent names the instances whose shims do not answer, with the reasons.
func (c *crews) silent() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	more := 0
	for _, r := range c.everyRunner() {
		switch {
		case r.shown.silent == "":
		case len(all) == silentMax:
			more++
		default:
			all = append(all, fmt.Sprintf("%s (%s)", r.id, r.shown.silent))
		}
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}
