package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// waits returns why no instance of the service can start now, or "" if one can.
func (d *Draft) waits() string {
	why, _ := d.ordinalsWait()
	return cmp.Or(d.unaddressed(), d.unmet(), d.unlent(), d.hostless(), d.overdrawn(), why)
}

// unaddressed returns why no instance starts without an address of the service, or "". An agent
// begins an instance only with an address.
func (d *Draft) unaddressed() string {
	if d.svc.VIP4.IsValid() {
		return ""
	}
	return "the service waits for an address"
}

// wish returns the facts that choose the host of an instance.
func (d *Draft) wish(
	s pando.Spec, home pando.HostName, fellows func(pando.HostName) int,
) lifecycle.Wish {
	return lifecycle.Wish{
		Spec: s, Rule: d.newest().Place, Home: home, Apart: d.apart, Loads: d.loads(home),
		Lacks: d.lacking(s), Fellows: fellows,
		Seats: func(h pando.HostName) (own, operators int) {
			fresh := d.load[h].Instances - d.w.LoadOn(h).Instances // of this decision
			own, operators = d.w.Seats.Of(d.svc.Tenant, h), d.w.Seats.Of(pando.DefaultTenant, h)
			if own += fresh; d.svc.Tenant == pando.DefaultTenant {
				operators += fresh
			}
			return own, operators
		},
		Beside: func(h pando.HostName) int {
			if !d.here(h) {
				return 0
			}
			return d.crew.staying[h]
		},
	}
}

// choose finds the host of a new instance and makes it the service's home. An ordinal with volumes
// starts on their host. fellows are those that stay with it (nil: all).
func (d *Draft) choose(
	s pando.Spec, volumes pando.HostName, fellows func(pando.HostName) int,
) (pando.Host, string, error) {
	if why := d.waits(); why != "" {
		return pando.Host{}, "", fmt.Errorf("%w: %s", pando.ErrNoRoom, why)
	}
	home := cmp.Or(volumes, d.target(), d.home())
	h, why, err := lifecycle.Place(d.choices(home), d.wish(s, home, fellows))
	if err != nil {
		return h, why, err
	}
	if d.spreads() {
		d.svc.Home = ""
		return h, why, nil
	}
	if was := d.svc.Home; was != "" && was != h.Name {
		why := lifecycle.Moved(was, h.Name, d.standing(was))
		if s := d.svc.Shift; s != nil && s.From == was {
			why = fmt.Sprintf("it moves to %s, which is less loaded than %s", h.Name, was)
		}
		d.record(pando.DecidedHostLost, "", why, nil)
	}
	d.svc.Home = h.Name
	return h, why, nil
}

// loads returns the load of each host that may take the next instance: only the home's if there is
// one. The decision computes it once per home and adds its own placements.
func (d *Draft) loads(home pando.HostName) map[pando.HostName]lifecycle.Load {
	if d.load != nil && d.loadOf == home {
		return d.load
	}
	d.load, d.loadOf = map[pando.HostName]lifecycle.Load{}, home
	for _, h := range d.choices(home) {
		if home == "" || h.Name == home {
			d.load[h.Name] = lifecycle.Load(d.w.LoadOn(h.Name))
		}
	}
	var fresh []pando.Instance
	for _, i := range d.seated() {
		if d.fresh(i.ID) {
			fresh = append(fresh, i)
		}
	}
	d.addLoad(fresh...)
	return d.load
}

// addLoad adds instances to the loads, if they are known.
func (d *Draft) addLoad(instances ...pando.Instance) {
	if d.load == nil {
		return
	}
	limits := func(i pando.Instance) pando.Resources {
		s, _ := d.w.SpecOf(i.Service, i.Revision)
		return s.Resources
	}
	for h, l := range lifecycle.Loads(instances, limits) {
		d.load[h] = d.load[h].Plus(l)
	}
}

// place gives a granted replicate an instance: a warm one of the same revision if there is one,
// else a new one. It reports whether there is one.
func (d *Draft) place(i pando.Intent, revision int) bool {
	o, warm := lifecycle.Claim(d.crew.reserve(), revision, d.claims(), d.fellows(revision, false))
	if !warm || i.From != "" {
		return d.placeNew(i, revision, d.role(), false)
	}
	i.Instance, i.Host, d.starts = o.ID, o.Host, true
	i.Inputs = with(i.Inputs, map[string]float64{lifecycle.Revision: float64(revision)})
	reason := fmt.Sprintf("warm on %s", o.Host)
	d.putIntent(i.Become(pando.IntentPlaced, d.now, reason))
	o.Warm, o.Intent, o.Born, o.Role, o.Replaces = false, i.ID, d.birth(), d.role(), d.replaces
	d.putInstance(o.Become(pando.PhasePlaced, d.now, reason))
	return true
}

// RoomLook is the time between two looks for room. No event reports the room that other services
// leave.
const RoomLook = 5 * time.Second

// birth returns when an instance that is placed now is born. The clock of a former leader may have been
// ahead: an instance is never older than those before it.
func (d *Draft) birth() time.Time {
	at := d.now
	for _, i := range d.crew.all {
		if i.Born.After(at) {
			at = i.Born.Add(time.Nanosecond)
		}
	}
	for _, i := range d.parts {
		if i.Born.After(at) {
			at = i.Born.Add(time.Nanosecond)
		}
	}
	return at
}

// own reports whether this decision itself made an intent, so that no asker waits for its answer.
func (d *Draft) own(i pando.Intent) bool {
	return !slices.ContainsFunc(d.intents, func(o pando.Intent) bool { return o.ID == i.ID })
}

// placeNew gives an intent a new instance, and moves it to placed. If no host has room, an ask
// moves to failed. An intent of this decision itself is not written then: it would fail at every
// look.
func (d *Draft) placeNew(i pando.Intent, revision int, role pando.Role, warm bool) bool {
	spec, _ := d.spec(revision)
	o := pando.Instance{
		ID: d.name(i), Service: d.svc.ServiceKey, Revision: revision,
		SpecHash: d.hashOf(revision), Weight: 100, Role: role, Warm: warm, Phase: pando.PhasePlaced,
		Reason: i.Reason, From: i.From, Intent: i.ID, Born: d.birth(), Since: d.now,
		Replaces: d.replaces,
	}
	var volumes pando.HostName
	switch {
	case d.newest().Stateful():
		volumes = d.assignOrdinal(&o)
	case spec.Ordinals():
		o.Ordinal = lifecycle.Ordinal(d.heldOrdinals(spec, revision))
		if e, ok := spec.External(o.Ordinal); ok {
			o.Weight = e.Weight
		}
	}
	host, why, err := d.choose(spec, volumes, d.fellows(revision, warm))
	switch {
	case err == nil:
	case d.own(i):
		d.roomless = err.Error()
		d.lookAgain(d.now.Add(RoomLook))
		return false
	default:
		i.Instance = ""
		d.putIntent(i.Become(pando.IntentFailed, d.now, err.Error()))
		return false
	}
	d.svc.Sizes = pando.KeepSizes(d.svc.Sizes, spec, o.Ordinal)
	if o.Host = host.Name; d.newest().Stateful() {
		d.keepOrdinalHost(o)
	}
	i.Instance, i.Host, d.starts = o.ID, host.Name, true
	i.Inputs = with(i.Inputs, map[string]float64{lifecycle.Revision: float64(revision)})
	d.putIntent(i.Become(pando.IntentPlaced, d.now, why))
	d.putInstance(o)
	d.addLoad(o)
	d.taken = d.taken.Plus(scale.Of(1, spec.Resources))
	return true
}

// namesTried bounds the search for a free name. A name has 33 million random endings.
const namesTried = 100

// name returns the proposed name if it is valid and free, else a new one. Names are unique in the
// cluster, also those of two tenants with one name of a service.
func (d *Draft) name(i pando.Intent) pando.InstanceID {
	prefix := string(d.svc.Name) + "-"
	name := i.Instance
	if !strings.HasPrefix(string(name), prefix) ||
		pando.CheckLabel("instance", string(name)) != nil {
		name = d.ids.Instance(d.svc.Name)
	}
	taken := func() bool {
		_, part := d.parts[name]
		return part || d.w.HasName(name) || d.crew.has(name)
	}
	for n := 0; n < namesTried && taken(); n++ {
		name = d.ids.Instance(d.svc.Name)
	}
	return name
}

func (d *Draft) role() pando.Role {
	return d.crew.count(func(pando.HostName) bool { return true }).NextRole()
}

// candidates returns every member and every other host with a lease, in order.
func (d *Draft) candidates() []lifecycle.Candidate {
	names := map[pando.HostName]bool{}
	for h := range d.w.Members {
		names[h] = true
	}
	for h := range d.w.Hosts {
		names[h] = true
	}
	out := make([]lifecycle.Candidate, 0, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		h := d.w.Hosts[name].V
		h.Name = name
		out = append(out, lifecycle.Candidate{Host: h, Standing: d.standing(name)})
	}
	return out
}
