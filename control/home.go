package control

import (
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// home is the host on which all instances of a service are placed: its VIP is served there, and the objects of its state are
// there. "": it has none yet, or is free to find another.
//
// A service that has pushed a state, or whose spec has one, is bound to its home: what was committed there must not be forgotten
// because the host is away for a while. Any other one finds a new home once the lease of the old one has ended, or when it leaves.
func (d *draft) home() pando.HostName {
	if head, ok := d.w.Heads[d.svc.ServiceKey]; ok {
		return head.V.Host
	}
	home, bound := d.svc.Home, len(d.newest().State) > 0
	if home == "" {
		for _, i := range reachable(d.w, d.instances) { // of a service that was placed before there were homes
			if i.Capacity() {
				return i.Host
			}
		}
	}
	if bound || d.takes(home) {
		return home
	}
	return ""
}

// here says whether a host has its lease, or none is known at all.
func (d *draft) here(h pando.HostName) bool {
	_, alive := d.w.Hosts[h]
	return alive || len(d.w.Hosts) == 0
}

// takes says whether a host takes instances: it has its lease and does not leave.
func (d *draft) takes(h pando.HostName) bool {
	known, here := d.w.Hosts[h]
	return here && !known.V.Leaving
}

// waits says why nothing of the service can be started anywhere now; "": it can.
func (d *draft) waits() string {
	home := d.home()
	switch {
	case len(d.hosts()) == 0:
		return "no host takes instances"
	case home != "" && !d.takes(home) && d.removed(home):
		return fmt.Sprintf("its state was on %s, which was removed from the cluster: `pando rm --purge` and a new deploy begin without that state", home)
	case home != "" && !d.takes(home):
		return fmt.Sprintf("its state is on %s, which %s: it goes on there when the host is back; `pando rm --purge` and a new deploy begin without that state", home, d.gone(home))
	}
	return ""
}

// gone says in which way a host takes no instances.
func (d *draft) gone(h pando.HostName) string {
	if d.w.Hosts[h].V.Leaving {
		return "leaves"
	}
	return "is away"
}

// removed says whether a host has no member record. Where there are none at all, nothing is known of members.
func (d *draft) removed(h pando.HostName) bool {
	_, member := d.w.Members[h]
	return !member && len(d.w.Members) > 0
}

// sayWaits puts it on record, once, when a service begins to wait for its home.
func (d *draft) sayWaits(why string) {
	if why != "" && !strings.Contains(d.svc.Reason, why) {
		d.decide(pando.DecidedHostLost, self, "", "nothing is started in its place: "+why, nil)
	}
}

// resources of an instance, as its spec limits them.
func (d *draft) resources(i pando.Instance) pando.Resources {
	s, _ := d.w.SpecOf(i.Service, i.Revision)
	return s.Resources
}

// choose finds the host of a new instance, and makes it the service's home.
func (d *draft) choose(s pando.Spec) (pando.Host, string, error) {
	if why := d.waits(); why != "" {
		return pando.Host{}, "", fmt.Errorf("%w: %s", pando.ErrNoRoom, why)
	}
	h, why, err := lifecycle.Place(d.hosts(), d.loads(d.home()), s, d.home())
	if err != nil {
		return h, why, err
	}
	if was := d.svc.Home; was != "" && was != h.Name {
		d.decide(pando.DecidedHostLost, self, "", fmt.Sprintf("it moves to %s, because %s, its home, %s; it keeps no state there", h.Name, was, d.gone(was)), nil)
	}
	d.svc.Home = h.Name
	return h, why, nil
}

// bringHome takes out what runs elsewhere, once the home serves: a host was away, the service moved, and now it is back.
func (d *draft) bringHome(least int) {
	home := d.home()
	if home == "" || scale.Serving(d.reachable()) < least {
		return
	}
	for _, i := range reachable(d.w, slices.Clone(d.instances)) {
		if i.Host != home && i.Phase.May(pando.PhaseDraining) && !d.full() {
			d.drain(i, fmt.Sprintf("the service moved to %s while %s was away", home, i.Host))
		}
	}
}

// forgetLost gives up the records of a service that is removed on hosts that are away: whoever returns ends what has none.
func (d *draft) forgetLost() {
	d.instances = slices.DeleteFunc(d.instances, func(i pando.Instance) bool {
		if d.here(i.Host) || d.full() {
			return false
		}
		d.deletes = append(d.deletes, i.Key())
		d.conds[i.Key()] = d.w.Instances[i.ID].If()
		return true
	})
}
