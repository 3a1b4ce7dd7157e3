package decide

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// Here reports whether a host has its lease. In a world without hosts every one has.
func Here(w *world.World, h pando.HostName) bool {
	_, alive := w.Hosts[h]
	return alive || len(w.Hosts) == 0
}

// here reports whether a host has its lease. It returns true for every host if no host is recorded.
func (d *Draft) here(h pando.HostName) bool { return Here(d.w, h) }

// TakesNew reports whether a host has its lease and takes new instances.
func TakesNew(w *world.World, h pando.HostName) bool {
	host, here := w.Hosts[h]
	return here && !host.V.Leaving && host.V.Frozen == "" && !Drained(w, h)
}

// Drained reports whether an operator drains a host.
func Drained(w *world.World, h pando.HostName) bool { return w.Drained[h] }

// standing returns whether a host can be the home of the service. A service that is there already
// may stay beside any other.
func (d *Draft) standing(h pando.HostName) lifecycle.Standing {
	host, here := d.w.Hosts[h]
	_, member := d.w.Members[h]
	return lifecycle.Standing{
		Here: here, Leaving: host.V.Leaving || host.V.Frozen != "" || Drained(d.w, h),
		Drained: Drained(d.w, h),
		Removed: !member && len(d.w.Members) > 0,
		Unfit:   d.unfit(h, host.V),
	}
}

// home returns the host on which all instances of the service are placed, or "" (lifecycle.Home).
func (d *Draft) home() pando.HostName {
	s := d.newest()
	t := lifecycle.Tie{Home: d.svc.Home, Spread: s.Place.Spread != "", Keeper: d.keeper.Host}
	if kept := d.w.Volumes[d.svc.ServiceKey].V.Host; t.Home == "" && len(s.Volumes) > 0 {
		t.Home = kept
	}
	if at, _ := d.lender(s); at != "" {
		t.Home = at
	}
	t.State = len(s.State)+len(s.Volumes) > 0
	if t.Spread && s.Stateful() { // each ordinal has a host of its own
		t.State = len(s.State) > 0
	}
	t.Copies = s.StateCopies > 1 && len(s.Volumes) == 0 // a volume has no copy
	st := d.standing(t.Home)
	t.Takes, t.Breaks = st.Here && !st.Leaving && d.target() == "", st.Unfit != ""
	t.Runs = d.crew.counts[t.Home].Present > 0
	if head, ok := d.w.Heads[d.svc.ServiceKey]; ok {
		t.Pushed, t.Head = true, head.V.Host
	} else if t.Home == "" && !t.Spread {
		for _, i := range d.crew.all {
			if i.Capacity() && d.here(i.Host) {
				t.Oldest = i.Host
				break
			}
		}
	}
	return lifecycle.Home(t)
}

// unfit returns why a host cannot stay the home of the service, or "".
func (d *Draft) unfit(name pando.HostName, h pando.Host) string {
	h.Name = name
	return lifecycle.Unfit(h, pando.Place{Only: d.newest().Place.Only}, nil, d.lacking(d.nextSpec()))
}

// lacking returns a function with the reason that a host lacks the runtime or a grant of a spec.
// Nil: the spec has neither.
func (d *Draft) lacking(s pando.Spec) func(pando.HostName) string { return Lacks(d.w, s) }

// Lacks returns a function that names what a host does not give to a spec, or nil if the spec needs
// nothing of a host.
func Lacks(w *world.World, s pando.Spec) func(pando.HostName) string {
	if len(s.Grants) == 0 && s.Runtime == "" {
		return nil
	}
	return func(h pando.HostName) string {
		if s.Runtime == pando.RuntimeCrun && !w.Hosts[h].V.Crun {
			return "has no crun (`apt-get install crun` there, then `pando up` again)"
		}
		if g := w.Members[h].V.Withholds(s.Grants); g != "" {
			return pando.NotGiven(h, g)
		}
		return ""
	}
}

// hosts returns the hosts that take new instances.
func (d *Draft) hosts() []pando.Host {
	if d.takers != nil {
		return d.takers
	}
	d.takers = make([]pando.Host, 0, len(d.w.Hosts))
	for _, name := range d.w.HostNames() {
		if h := d.w.Hosts[name].V; TakesNew(d.w, name) {
			d.takers = append(d.takers, h)
		}
	}
	return d.takers
}

// choices returns the hosts among which the next instance is placed: the home alone, if it takes
// new instances. The cost then does not grow with the cluster.
func (d *Draft) choices(home pando.HostName) []pando.Host {
	if home != "" && TakesNew(d.w, home) {
		return []pando.Host{d.w.Hosts[home].V}
	}
	return d.hosts()
}

// spreads reports whether the instances of the service need no common host.
func (d *Draft) spreads() bool { return d.newest().Place.Spread != "" && d.home() == "" }

// apart reports whether a host has instances of the service from which this one stays apart.
func (d *Draft) apart(h pando.HostName) bool {
	if d.shunned == nil {
		other := pando.ServiceKey{Tenant: d.svc.Tenant, Name: d.newest().Place.Apart}
		d.shunned = d.w.HostsOf(other)
	}
	return d.shunned[h]
}

// fellows returns the number of instances on a host that stay with a new one of a revision: those of
// the same revision, or alike. A reserve counts only beside another reserve.
func (d *Draft) fellows(revision int, reserve bool) func(pando.HostName) int {
	same := sync.OnceValue(func() map[int]bool { return d.alike(revision) })
	of := func(h pando.HostName, revision int) int {
		n := d.crew.fellows[fellowship{h, revision, false}]
		if reserve {
			n += d.crew.fellows[fellowship{h, revision, true}]
		}
		return n
	}
	return func(h pando.HostName) int {
		if !d.here(h) {
			return 0
		}
		n := of(h, revision)
		for other := range same() {
			n += of(h, other)
		}
		return n
	}
}

// claims returns a function that reports whether an instance in reserve on a host may be taken.
func (d *Draft) claims() func(pando.HostName) bool {
	home := d.home()
	if d.spreads() {
		return func(h pando.HostName) bool {
			return slices.ContainsFunc(d.fitting(), func(f pando.Host) bool { return f.Name == h })
		}
	}
	return func(h pando.HostName) bool { return h == home && d.here(home) }
}

// heldOrdinals returns a function that reports whether a new instance of a revision cannot have an
// ordinal. Two instances cannot have one volume. An endpoint has one instance of the revision that
// stays, and instances of other revisions may serve it meanwhile.
func (d *Draft) heldOrdinals(spec pando.Spec, revision int) func(int) bool {
	if len(spec.Endpoints) == 0 {
		return func(n int) bool { return d.crew.held[n] > 0 }
	}
	held, others := map[int]bool{}, d.alike(revision)
	for _, i := range d.crew.all {
		if (i.Revision == revision || others[i.Revision]) && i.Phase.May(pando.PhaseDraining) {
			held[i.Ordinal] = true
		}
	}
	return func(n int) bool { return held[n] }
}

// reach returns a function that reports whether the instances of a host count (lifecycle.Counts).
// It returns the home that the function rests on.
func (d *Draft) reach() (on func(pando.HostName) bool, home pando.HostName) {
	if len(d.w.Hosts) == 0 {
		return func(pando.HostName) bool { return true }, ""
	}
	home = d.home()
	return func(h pando.HostName) bool { return lifecycle.Counts(h, home, d.here(h)) }, home
}

// count returns the number of instances that count.
func (d *Draft) count() scale.Count {
	on, _ := d.reach()
	return d.crew.count(on)
}

// reachable returns the instances that count. The list is made again after a change.
func (d *Draft) reachable() []pando.Instance {
	on, home := d.reach()
	if d.listed != d.crew.changes || d.listHome != home {
		d.list, d.listed, d.listHome = onHosts(d.crew.all, on), d.crew.changes, home
	}
	return d.list
}

// OnLiveHosts returns the instances on hosts with a lease.
func OnLiveHosts(w *world.World, all []pando.Instance) []pando.Instance {
	return onHosts(all, func(h pando.HostName) bool { return Here(w, h) })
}

// onHosts returns the instances on some hosts. It returns the same slice if those are all.
func onHosts(all []pando.Instance, on func(pando.HostName) bool) []pando.Instance {
	if !slices.ContainsFunc(all, func(i pando.Instance) bool { return !on(i.Host) }) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(i pando.Instance) bool { return !on(i.Host) })
}

// mustLeave reports whether an instance has to leave its host.
func (d *Draft) mustLeave(i pando.Instance) bool {
	return Drained(d.w, i.Host) || d.svc.Shift.Moves(i)
}

// leaveReason returns why an instance leaves its host.
func (d *Draft) leaveReason(i pando.Instance) string {
	if s := d.svc.Shift; s.Moves(i) && !Drained(d.w, i.Host) {
		return fmt.Sprintf("%s is less loaded than its host %s", s.To, i.Host)
	}
	return fmt.Sprintf("its host %s is drained", i.Host)
}

// target returns the host to which a shift moves the next instance, or "".
func (d *Draft) target() pando.HostName {
	s := d.svc.Shift
	if s == nil || !TakesNew(d.w, s.To) {
		return ""
	}
	if len(s.Instances) == 0 && d.svc.Home == s.From || slices.Contains(s.Instances, d.replaces) {
		return s.To
	}
	return ""
}

// lender returns the host with the volumes of other services that a spec has, or why there is none.
// A spec without such volumes has neither.
func (d *Draft) lender(s pando.Spec) (at pando.HostName, why string) {
	for _, v := range s.Volumes {
		if v.Of == "" {
			continue
		}
		of := v.Owner(d.svc.ServiceKey)
		host := cmp.Or(d.w.Services[of].V.Home, d.w.Volumes[of].V.Host)
		switch {
		case host == "" && d.w.Services[of].V.Name == "":
			return "", fmt.Sprintf("its volume %s is of %s, which is not deployed: deploy %[2]s first",
				v.Name, of)
		case host == "":
			return "", fmt.Sprintf("its volume %s is of %s, which has no host yet", v.Name, of)
		case at != "" && at != host:
			return "", fmt.Sprintf("its volumes are on %s and %s: give both services one host with `place`",
				at, host)
		}
		at = host
	}
	if was := d.svc.Home; at != "" && was != "" && was != at && ownVolumes(s) {
		return "", fmt.Sprintf("its own volumes are on %s, and the volumes that it shares are on %s: "+
			"`pando rm` and a new deploy begin there with empty ones", was, at)
	}
	return at, ""
}

// unlent returns why the service has no host with the volumes of others that its spec has, or "".
func (d *Draft) unlent() string {
	_, why := d.lender(d.newest())
	return why
}

func ownVolumes(s pando.Spec) bool {
	return slices.ContainsFunc(s.Volumes, func(v pando.Volume) bool { return v.Of == "" })
}

// nextSpec returns the spec of the next instance.
func (d *Draft) nextSpec() pando.Spec {
	if d.rolling() {
		return d.newest()
	}
	s, _ := d.spec(d.serving())
	return s
}

// fitting returns the hosts that take new instances of the service, by its rule.
func (d *Draft) fitting() []pando.Host {
	if d.fits == nil {
		d.fits = lifecycle.Fitting(d.hosts(), d.newest().Place, d.apart,
			d.lacking(d.nextSpec()))
	}
	return d.fits
}

// fitsSome reports whether a host takes new instances of the service. It looks at no host after the
// first one, because a service asks while its instances start.
func (d *Draft) fitsSome() bool {
	rule, lacks := d.newest().Place, d.lacking(d.nextSpec())
	for _, name := range d.w.HostNames() {
		if TakesNew(d.w, name) && lifecycle.Unfit(d.w.Hosts[name].V, rule, d.apart, lacks) == "" {
			return true
		}
	}
	return false
}

// hostless returns why no host takes an instance of the service now, or "" if one does.
func (d *Draft) hostless() string {
	home := d.home()
	if why := lifecycle.Homeless(d.keeper, d.here); why != "" {
		return why
	}
	at := d.standing(home)
	if home != "" && at.Takes() {
		return "" // the usual case looks at no other host
	}
	if home == "" && d.fitsSome() {
		return ""
	}
	return lifecycle.Waits(len(d.hosts()), len(d.fitting()), home, at, d.away())
}

// away returns the members that are away, sorted.
func (d *Draft) away() (out []pando.HostName) {
	for name := range d.w.Members {
		if !d.here(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
