// Package crew holds the runners of one host: by name, by service, and by the addresses of their
// sandboxes. It tells them what a commit changes for them.
//
// It never starts a runner, and it reads no store but for the asks of former agents.
package crew

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
	"pando.run/pando/world"
)

// Crews are the runners of this host. The lock of the records guards them: a method that takes the
// world of the records, and a reader of ByName or Of, holds it.
type Crews struct {
	host     pando.HostName
	clock    pando.Clock
	records  *records.Records
	steering *steer.Queue
	ByName   map[pando.InstanceID]*runner.Runner
	Of       map[pando.ServiceKey][]*runner.Runner // per service, sorted by instance name
	// rotation holds the instances that take flows, as last sent to the crews.
	rotation map[pando.ServiceKey]map[pando.InstanceID]bool
	sources  sources
	at       map[netip.Addr]*runner.Runner // by the addresses of their sandboxes
}

// New returns crews without runners.
func New(
	h pando.HostName, r *records.Records, q *steer.Queue, c pando.Clock,
) *Crews {
	return &Crews{
		host: h, clock: c, records: r, steering: q, ByName: map[pando.InstanceID]*runner.Runner{},
		Of:       map[pando.ServiceKey][]*runner.Runner{},
		rotation: map[pando.ServiceKey]map[pando.InstanceID]bool{},
		sources:  sources{}, at: map[netip.Addr]*runner.Runner{},
	}
}

// Runner returns the runner of an instance of this host.
func (c *Crews) Runner(i pando.InstanceID) (*runner.Runner, error) {
	c.records.Lock()
	defer c.records.Unlock()
	r, ok := c.ByName[i]
	if !ok {
		return nil, fmt.Errorf("instance %s: %w on this host", i, pando.ErrNotFound)
	}
	return r, nil
}

// Enlist adds a runner. A crew is sorted by instance name.
func (c *Crews) Enlist(_ *world.World, r *runner.Runner) {
	c.ByName[r.ID] = r
	crew := c.Of[r.Service]
	at, _ := slices.BinarySearchFunc(crew, r.ID, func(o *runner.Runner, id pando.InstanceID) int {
		return cmp.Compare(o.ID, id)
	})
	c.Of[r.Service] = slices.Insert(crew, at, r)
}

// Remove removes a runner that has ended.
func (c *Crews) Remove(r *runner.Runner) {
	c.records.Lock()
	defer c.records.UnlockChanged()
	delete(c.ByName, r.ID)
	c.locate(r, r.Shown.Link, pando.Link{})
	c.unfollow(r)
	crew := slices.DeleteFunc(c.Of[r.Service], func(o *runner.Runner) bool { return o == r })
	if c.Of[r.Service] = crew; len(crew) == 0 {
		delete(c.Of, r.Service)
		delete(c.rotation, r.Service)
	}
}

// AllIn returns the runners sorted by instance name, so that their order does not depend on a map.
func (c *Crews) AllIn(*world.World) (out []*runner.Runner) {
	for _, id := range slices.Sorted(maps.Keys(c.ByName)) {
		out = append(out, c.ByName[id])
	}
	return out
}

// WakeAll makes every runner look again.
func (c *Crews) WakeAll() {
	c.records.Lock()
	defer c.records.Unlock()
	for _, r := range c.AllIn(c.records.World) {
		r.LookAgain()
	}
}

// Show stores the state of a runner, and steers the service again if its table differs.
func (c *Crews) Show(r *runner.Runner, now runner.Status) {
	c.records.Lock()
	defer c.records.Unlock()
	was := r.Shown
	r.Shown = now
	c.locate(r, was.Link, now.Link)
	if runner.MovesFlows(was, now) {
		c.steering.Changed(r.Service)
	}
}

// locate moves a runner to the addresses of its sandbox.
func (c *Crews) locate(r *runner.Runner, was, now pando.Link) {
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
func (c *Crews) InstanceAt(a netip.Addr) (s pando.ServiceKey, spec pando.Spec, ok bool) {
	c.records.Lock()
	defer c.records.Unlock()
	r, ok := c.at[a]
	if !ok {
		return s, spec, false
	}
	spec, _ = c.records.World.SpecOf(r.Service, r.Shown.Instance.Revision)
	return r.Service, spec, true
}

// FellowsIn returns the youngest instances of a service that take flows, at most PeersMax, oldest
// first, and the number of all that do. It includes the asker if that takes flows.
func (c *Crews) FellowsIn(
	w *world.World, asker *runner.Runner,
) (youngest []pando.InstanceStatus, all int) {
	s := asker.Service
	e := w.Endpoints[s].V
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
		add(asker.StatusIn(w).Instance)
	}
	slices.Reverse(youngest)
	if all = len(c.takers(s)); len(youngest) < pando.PeersMax {
		all = len(youngest)
	}
	return youngest, all
}

// seated returns the instance of a seat as this host has it.
func (c *Crews) seated(s pando.ServiceKey, e pando.Endpoints, t pando.Seat) pando.Instance {
	if r, ok := c.ByName[t.Instance]; ok {
		return r.StatusIn(c.records.World).Instance
	}
	return pando.Instance{
		ID: t.Instance, Service: s, Host: e.HostOf(t), Revision: t.Revision, Weight: t.Weight,
		Phase: t.Phase, Since: t.Since,
	}
}

// takers returns the instances of a service that take flows, as last sent to its crew.
func (c *Crews) takers(s pando.ServiceKey) map[pando.InstanceID]bool {
	if c.rotation[s] == nil {
		c.rotation[s] = c.count(s)
	}
	return c.rotation[s]
}

// count finds the instances of a service that take flows.
func (c *Crews) count(s pando.ServiceKey) map[pando.InstanceID]bool {
	in := map[pando.InstanceID]bool{}
	for _, t := range c.records.World.Endpoints[s].V.Seats {
		if c.ByName[t.Instance] == nil && t.Phase.TakesFlows() {
			in[t.Instance] = true
		}
	}
	for _, r := range c.Of[s] {
		if r.StatusIn(c.records.World).Instance.Phase.TakesFlows() {
			in[r.ID] = true
		}
	}
	return in
}

// silentMax bounds the instances that the losses of a host name.
const silentMax = 8

// Silent names the instances whose shims do not answer, with the reasons.
func (c *Crews) Silent() string {
	c.records.Lock()
	defer c.records.Unlock()
	var all []string
	more := 0
	for _, r := range c.AllIn(c.records.World) {
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

// Running returns the instances that have a sandbox.
func (c *Crews) Running() (all []work.Running) {
	c.records.Lock()
	defer c.records.Unlock()
	for _, r := range c.AllIn(c.records.World) {
		if now := r.Shown; now.Box != nil {
			all = append(all, work.Running{Instance: now.Instance, Box: now.Box, Born: now.Born})
		}
	}
	return all
}

// OnlyShare reports whether no other instance of the service has a share of new flows.
func (c *Crews) OnlyShare(r *runner.Runner) bool {
	c.records.Lock()
	defer c.records.Unlock()
	for _, o := range c.Of[r.Service] {
		if s := o.StatusIn(c.records.World); o != r && s.Runs && s.Instance.Phase.TakesFlows() && s.Instance.Weight > 0 {
			return false
		}
	}
	for _, t := range c.records.World.Endpoints[r.Service].V.Seats {
		if c.ByName[t.Instance] == nil && t.Phase.TakesFlows() && t.Weight > 0 {
			return false
		}
	}
	return true
}

// OthersAnswer reports whether another instance of a service serves with its whole share, here or
// on a host that is alive.
func (c *Crews) OthersAnswer(r *runner.Runner) bool {
	c.records.Lock()
	defer c.records.Unlock()
	for _, o := range c.Of[r.Service] {
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
		if c.ByName[t.Instance] == nil && here && t.Phase.TakesFlows() && t.Weight == runner.WholeWeight {
			return true
		}
	}
	return false
}

// All returns all runners, sorted by instance name.
func (c *Crews) All() []*runner.Runner {
	c.records.Lock()
	defer c.records.Unlock()
	return c.AllIn(c.records.World)
}
