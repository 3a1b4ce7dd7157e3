package control

import (
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// home returns the host on which all instances of a service are placed. That host serves the VIP
// and has the objects of the state. "" means that the service has no home yet or may move.
//
// A service with a pushed state, or with a state in its spec, is bound to its home. Its commits
// must survive while the host is away. Any other service moves when the lease of its home ends, or
// when the home leaves.
func (d *draft) home() pando.HostName {
	if head, ok := d.w.Heads[d.svc.ServiceKey]; ok {
		return head.V.Host
	}
	home, bound := d.svc.Home, len(d.newest().State) > 0
	if home == "" {
		// The service may have been placed before homes existed.
		for _, i := range reachable(d.w, d.instances) {
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

// here reports whether a host has its lease. It returns true for every host if no host is recorded.
func (d *draft) here(h pando.HostName) bool {
	_, alive := d.w.Hosts[h]
	return alive || len(d.w.Hosts) == 0
}

// takes reports whether a host takes instances: it has its lease and does not leave.
func (d *draft) takes(h pando.HostName) bool {
	known, here := d.w.Hosts[h]
	return here && !known.V.Leaving
}

// waits returns why no instance of the service can be started now, or "" if one can.
func (d *draft) waits() string {
	home := d.home()
	switch {
	case len(d.hosts()) == 0:
		return "no host takes instances"
	case home != "" && !d.takes(home) && d.removed(home):
		return fmt.Sprintf("its state was on %s, which was removed from the cluster: `pando rm --purge` and a new deploy begin without that state", home)
	case home != "" && !d.takes(home):
		return fmt.Sprintf("its state is on %s, which %s: it continues there when the host is back; `pando rm --purge` and a new deploy begin without that state", home, d.gone(home))
	}
	return ""
}

// gone returns the reason that a host takes no instances.
func (d *draft) gone(h pando.HostName) string {
	if d.w.Hosts[h].V.Leaving {
		return "leaves"
	}
	return "is away"
}

// removed reports whether a host lacks a member record. It returns false if the cluster has no
// member records.
func (d *draft) removed(h pando.HostName) bool {
	_, member := d.w.Members[h]
	return !member && len(d.w.Members) > 0
}

// sayWaits records once that a service begins to wait for its home.
func (d *draft) sayWaits(why string) {
	if why != "" && !strings.Contains(d.svc.Reason, why) {
		d.decide(pando.DecidedHostLost, self, "", "nothing is started in its place: "+why, nil)
	}
}

// resources returns the limits of an instance from its spec.
func (d *draft) resources(i pando.Instance) pando.Resources {
	s, _ := d.w.SpecOf(i.Service, i.Revision)
	return s.Resources
}

// choose finds the host of a new instance and makes it the service's home.
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

// bringHome drains instances outside the home once the home serves. They ran on a host that was
// away while the service moved, and the host is now back.
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

// forgetLost deletes the records of a removed service's instances on hosts that are away. A
// returning host ends instances without a record.
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
