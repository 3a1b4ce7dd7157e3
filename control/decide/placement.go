package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

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

// here reports whether a host has its lease. It returns true for every host if no host is recorded.
func (d *Draft) here(h pando.HostName) bool { return Here(d.w, h) }

func Here(w *world.World, h pando.HostName) bool {
	_, alive := w.Hosts[h]
	return alive || len(w.Hosts) == 0
}

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

// unfit returns why a host cannot stay the home of the service, or "".
func (d *Draft) unfit(name pando.HostName, h pando.Host) string {
	h.Name = name
	return lifecycle.Unfit(h, pando.Place{Only: d.newest().Place.Only}, nil, d.lacking(d.nextSpec()))
}

// lacking returns a function with the reason that a host lacks the runtime or a grant of a spec.
// Nil: the spec has neither.
func (d *Draft) lacking(s pando.Spec) func(pando.HostName) string { return Lacks(d.w, s) }

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

// waits returns why no instance of the service can start now, or "" if one can.
func (d *Draft) waits() string {
	why, _ := d.ordinalsWait()
	return cmp.Or(d.unaddressed(), d.unmet(), d.unlent(), d.hostless(), d.overdrawn(), why)
}

// unlent returns why the service has no host with the volumes of others that its spec has, or "".
func (d *Draft) unlent() string {
	_, why := d.lender(d.newest())
	return why
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

func ownVolumes(s pando.Spec) bool {
	return slices.ContainsFunc(s.Volumes, func(v pando.Volume) bool { return v.Of == "" })
}

// unaddressed returns why no instance starts without an address of the service, or "". An agent
// would not begin it, and nobody could reach it.
func (d *Draft) unaddressed() string {
	if d.svc.VIP4.IsValid() {
		return ""
	}
	return "the service waits for an address"
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
	return lifecycle.Waits(len(d.hosts()), len(d.fitting()), home, at)
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

// fitting returns the hosts that take new instances of the service, by its rule.
func (d *Draft) fitting() []pando.Host {
	if d.fits == nil {
		d.fits = lifecycle.Fitting(d.hosts(), d.newest().Place, d.apart,
			d.lacking(d.nextSpec()))
	}
	return d.fits
}

// apart reports whether a host has instances of the service from which this one stays apart.
func (d *Draft) apart(h pando.HostName) bool {
	if d.shunned == nil {
		other := pando.ServiceKey{Tenant: d.svc.Tenant, Name: d.newest().Place.Apart}
		d.shunned = d.w.HostsOf(other)
	}
	return d.shunned[h]
}

// spreads reports whether the instances of the service need no common host.
func (d *Draft) spreads() bool { return d.newest().Place.Spread != "" && d.home() == "" }

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
// one. The placer computes it once per home and adds its own placements.
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
	o.Warm, o.Intent, o.Born, o.Role, o.Replaces = false, i.ID, d.now, d.role(), d.replaces
	d.putInstance(o.Become(pando.PhasePlaced, d.now, reason))
	return true
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

// RoomLook is the time between two looks for room. No event reports the room that other services
// leave.
const RoomLook = 5 * time.Second

// own reports whether this decision itself made an intent, so that no asker waits for its answer.
func (d *Draft) own(i pando.Intent) bool {
	return !slices.ContainsFunc(d.intents, func(o pando.Intent) bool { return o.ID == i.ID })
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

// placeNew gives an intent a new instance, and moves it to placed. If no host has room, an ask
// moves to failed. An intent of this decision itself is not written then: it would fail at every
// look.
func (d *Draft) placeNew(i pando.Intent, revision int, role pando.Role, warm bool) bool {
	spec, _ := d.spec(revision)
	o := pando.Instance{
		ID: d.name(i), Service: d.svc.ServiceKey, Revision: revision,
		Weight: 100, Role: role, Warm: warm, Phase: pando.PhasePlaced, Reason: i.Reason,
		From: i.From, Intent: i.ID, Born: d.now, Since: d.now, Replaces: d.replaces,
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

func with(a, b map[string]float64) map[string]float64 {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]float64{}
	}
	maps.Copy(out, b)
	return out
}

// nextSpec returns the spec of the next instance.
func (d *Draft) nextSpec() pando.Spec {
	if d.rolling() {
		return d.newest()
	}
	s, _ := d.spec(d.serving())
	return s
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
