package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/steer"
	"pando.run/pando/agent/work"
)

// crews are the runners of this host. The lock of the records guards them.
type crews struct {
	host     pando.HostName
	clock    pando.Clock
	records  *records.Records
	steering *steer.Queue
	runners  map[pando.InstanceID]*runner.Runner
	of       map[pando.ServiceKey][]*runner.Runner // per service, sorted by instance name
	// rotation holds the instances that take flows, as last sent to the crews.
	rotation map[pando.ServiceKey]map[pando.InstanceID]bool
	sources  sources
	at       map[netip.Addr]*runner.Runner // by the addresses of their sandboxes
}

func newCrews(
	h pando.HostName, r *records.Records, q *steer.Queue, c pando.Clock,
) *crews {
	return &crews{
		host: h, clock: c, records: r, steering: q, runners: map[pando.InstanceID]*runner.Runner{},
		of:       map[pando.ServiceKey][]*runner.Runner{},
		rotation: map[pando.ServiceKey]map[pando.InstanceID]bool{},
		sources:  sources{}, at: map[netip.Addr]*runner.Runner{},
	}
}

// runner returns the runner of an instance of this host.
func (c *crews) runner(i pando.InstanceID) (*runner.Runner, error) {
	c.records.Lock()
	defer c.records.Unlock()
	r, ok := c.runners[i]
	if !ok {
		return nil, fmt.Errorf("instance %s: %w on this host", i, pando.ErrNotFound)
	}
	return r, nil
}

// enlist adds a runner. A crew is sorted by instance name. The caller holds the lock.
func (c *crews) enlist(r *runner.Runner) {
	c.runners[r.ID] = r
	crew := c.of[r.Service]
	at, _ := slices.BinarySearchFunc(crew, r.ID, func(o *runner.Runner, id pando.InstanceID) int {
		return cmp.Compare(o.ID, id)
	})
	c.of[r.Service] = slices.Insert(crew, at, r)
}

// delist removes a runner that has ended.
func (c *crews) delist(r *runner.Runner) {
	c.records.Lock()
	defer c.records.UnlockChanged()
	delete(c.runners, r.ID)
	c.locate(r, r.Shown.Link, pando.Link{})
	c.unfollow(r)
	crew := slices.DeleteFunc(c.of[r.Service], func(o *runner.Runner) bool { return o == r })
	if c.of[r.Service] = crew; len(crew) == 0 {
		delete(c.of, r.Service)
		delete(c.rotation, r.Service)
	}
}

// everyRunner returns the runners sorted by instance name, so that their order does not depend on a
// map. The caller holds the lock.
func (c *crews) everyRunner() (out []*runner.Runner) {
	for _, id := range slices.Sorted(maps.Keys(c.runners)) {
		out = append(out, c.runners[id])
	}
	return out
}

// wakeAll makes every runner look again.
func (c *crews) wakeAll() {
	c.records.Lock()
	defer c.records.Unlock()
	for _, r := range c.everyRunner() {
		r.LookAgain()
	}
}

// Show stores the state of a runner, and steers the service again if its table differs.
func (c *crews) Show(r *runner.Runner, now runner.Status) {
	c.records.Lock()
	defer c.records.Unlock()
	was := r.Shown
	r.Shown = now
	c.locate(r, was.Link, now.Link)
	if runner.MovesFlows(was, now) {
		c.steering.Changed(r.Service)
	}
}

// locate moves a runner to the addresses of its sandbox. The caller holds the lock.
func (c *crews) locate(r *runner.Runner, was, now pando.Link) {
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

// TenantAt returns the tenant of the instance of this host with an address.
func (c *crews) TenantAt(a netip.Addr) (t pando.Tenant, ok bool) {
	c.records.Lock()
	defer c.records.Unlock()
	r, ok := c.at[a]
	if !ok {
		return "", false
	}
	return r.Service.Tenant, true
}

// fellows returns the youngest instances of a service that take flows, at most PeersMax, oldest
// first, and the number of all that do. It includes the asker if that takes flows. The caller
// holds the lock.
func (c *crews) fellows(asker *runner.Runner) (youngest []pando.InstanceStatus, all int) {
	s := asker.Service
	e := c.records.World.Endpoints[s].V
	youngest = make([]pando.InstanceStatus, 0, pando.PeersMax+1)
	seen := false
	add := func(i pando.Instance) {
		if i.Phase.TakesFlows() {
			youngest = append(youngest, pando.InstanceStatus{Instance: i})
			seen = seen || i.ID == asker.ID
		}
	}
	for n := len(e.Seats) - 1; n >= 0 && len(youngest) < pando.PeersMax; n-- {
		add(c.seated(s, e, e.Seats[n]))
	}
	if !seen {
		add(asker.StatusIn(c.records.World).Instance)
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
		return r.StatusIn(c.records.World).Instance
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
	for _, t := range c.records.World.Endpoints[s].V.Seats {
		if c.runners[t.Instance] == nil && t.Phase.TakesFlows() {
			in[t.Instance] = true
		}
	}
	for _, r := range c.of[s] {
		if r.StatusIn(c.records.World).Instance.Phase.TakesFlows() {
			in[r.ID] = true
		}
	}
	return in
}

// silentMax bounds the instances that the losses of a host name.
const silentMax = 8

// silent names the instances whose shims do not answer, with the reasons.
func (c *crews) silent() string {
	c.records.Lock()
	defer c.records.Unlock()
	var all []string
	more := 0
	for _, r := range c.everyRunner() {
		switch {
		case r.Shown.Silent == "":
		case len(all) == silentMax:
			more++
		default:
			all = append(all, fmt.Sprintf("%s (%s)", r.ID, r.Shown.Silent))
		}
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// running returns the instances that have a sandbox.
func (c *crews) running() (all []work.Running) {
	c.records.Lock()
	defer c.records.Unlock()
	for _, r := range c.everyRunner() {
		if now := r.Shown; now.Box != nil {
			all = append(all, work.Running{Instance: now.Instance, Box: now.Box, Born: now.Born})
		}
	}
	return all
}

// OnlyShare reports whether no other instance of the service has a share of new flows.
func (c *crews) OnlyShare(r *runner.Runner) bool {
	c.records.Lock()
	defer c.records.Unlock()
	for _, o := range c.of[r.Service] {
		if s := o.StatusIn(c.records.World); o != r && s.Runs && s.Instance.Phase.TakesFlows() && s.Instance.Weight > 0 {
			return false
		}
	}
	for _, t := range c.records.World.Endpoints[r.Service].V.Seats {
		if c.runners[t.Instance] == nil && t.Phase.TakesFlows() && t.Weight > 0 {
			return false
		}
	}
	return true
}

// OthersAnswer reports whether another instance of a service serves with its whole share, here or
// on a host that is alive.
func (c *crews) OthersAnswer(r *runner.Runner) bool {
	c.records.Lock()
	defer c.records.Unlock()
	for _, o := range c.of[r.Service] {
		if o.ID == r.ID {
			continue
		}
		s := o.StatusIn(c.records.World)
		if s.Runs && s.Instance.Phase == pando.PhaseInRotation && s.Instance.Weight == runner.WholeWeight {
			return true
		}
	}
	e := c.records.World.Endpoints[r.Service].V
	for _, t := range e.Seats {
		_, here := c.records.World.Hosts[e.HostOf(t)]
		if c.runners[t.Instance] == nil && here && t.Phase.TakesFlows() && t.Weight == runner.WholeWeight {
			return true
		}
	}
	return false
}

// Runners returns all runners, sorted by instance name.
func (c *crews) Runners() []*runner.Runner {
	c.records.Lock()
	defer c.records.Unlock()
	return c.everyRunner()
}
