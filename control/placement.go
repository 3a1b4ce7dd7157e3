package control

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

// placer gives granted asks their instances. It passes the facts about hosts in the ledger to the
// rules of lifecycle, and it writes their answer into the ledger.
type placer struct {
	*ledger
	load   map[pando.HostName]lifecycle.Load
	loadOf pando.HostName // the host of load, or "" for all hosts
	takers []pando.Host   // the result of hosts
	fits   []pando.Host   // the result of fitting
	// shunned are the hosts with instances of the service from which this one stays apart.
	shunned map[pando.HostName]bool
	taken   scale.Use // by the new instances of this decision
	// replaces is the instance that the next new one replaces (Instance.Replaces).
	replaces pando.InstanceID
	// roomless is the reason why no host has room for the next instance, or "".
	roomless string
	// quotaNoted is set once this decision has looked for the record of a wait for a quota.
	quotaNoted bool
}

// home returns the host on which all instances of the service are placed, or "" (lifecycle.Home).
func (p *placer) home() pando.HostName {
	s := p.newest()
	t := lifecycle.Tie{Home: p.svc.Home, Spread: s.Place.Spread != "", Keeper: p.keeper.Host}
	if kept := p.w.Volumes[p.svc.ServiceKey].V.Host; t.Home == "" && len(s.Volumes) > 0 {
		t.Home = kept
	}
	if at, _ := p.lender(s); at != "" {
		t.Home = at
	}
	t.State = len(s.State)+len(s.Volumes) > 0
	if t.Spread && s.Stateful() { // each ordinal has a host of its own
		t.State = len(s.State) > 0
	}
	t.Copies = s.StateCopies > 1 && len(s.Volumes) == 0 // a volume has no copy
	st := p.standing(t.Home)
	t.Takes, t.Breaks = st.Here && !st.Leaving && target(p) == "", st.Unfit != ""
	t.Runs = p.crew.counts[t.Home].Present > 0
	if head, ok := p.w.Heads[p.svc.ServiceKey]; ok {
		t.Pushed, t.Head = true, head.V.Host
	} else if t.Home == "" && !t.Spread {
		for _, i := range p.crew.all {
			if i.Capacity() && p.here(i.Host) {
				t.Oldest = i.Host
				break
			}
		}
	}
	return lifecycle.Home(t)
}

// here reports whether a host has its lease. It returns true for every host if no host is recorded.
func (p *placer) here(h pando.HostName) bool { return here(p.w, h) }

func here(w *world.World, h pando.HostName) bool {
	_, alive := w.Hosts[h]
	return alive || len(w.Hosts) == 0
}

// takesNew reports whether a host has its lease and takes new instances.
func takesNew(w *world.World, h pando.HostName) bool {
	host, here := w.Hosts[h]
	return here && !host.V.Leaving && host.V.Frozen == "" && !drained(w, h)
}

// drained reports whether an operator drains a host.
func drained(w *world.World, h pando.HostName) bool { return w.Drained[h] }

// standing returns whether a host can be the home of the service. A service that is there already
// may stay beside any other.
func (p *placer) standing(h pando.HostName) lifecycle.Standing {
	host, here := p.w.Hosts[h]
	_, member := p.w.Members[h]
	return lifecycle.Standing{
		Here: here, Leaving: host.V.Leaving || host.V.Frozen != "" || drained(p.w, h),
		Drained: drained(p.w, h),
		Removed: !member && len(p.w.Members) > 0,
		Unfit:   p.unfit(h, host.V),
	}
}

// unfit returns why a host cannot stay the home of the service, or "".
func (p *placer) unfit(name pando.HostName, h pando.Host) string {
	h.Name = name
	return lifecycle.Unfit(h, pando.Place{Only: p.newest().Place.Only}, nil, p.lacking(p.nextSpec()))
}

// lacking returns a function with the reason that a host lacks the runtime or a grant of a spec.
// Nil: the spec has neither.
func (p *placer) lacking(s pando.Spec) func(pando.HostName) string { return lacking(p.w, s) }

func lacking(w *world.World, s pando.Spec) func(pando.HostName) string {
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
func (p *placer) hosts() []pando.Host {
	if p.takers != nil {
		return p.takers
	}
	p.takers = make([]pando.Host, 0, len(p.w.Hosts))
	for _, name := range p.w.HostNames() {
		if h := p.w.Hosts[name].V; takesNew(p.w, name) {
			p.takers = append(p.takers, h)
		}
	}
	return p.takers
}

// choices returns the hosts among which the next instance is placed: the home alone, if it takes
// new instances. The cost then does not grow with the cluster.
func (p *placer) choices(home pando.HostName) []pando.Host {
	if home != "" && takesNew(p.w, home) {
		return []pando.Host{p.w.Hosts[home].V}
	}
	return p.hosts()
}

// waits returns why no instance of the service can start now, or "" if one can.
func (p *placer) waits() string {
	why, _ := berths{p}.berthed()
	return cmp.Or(p.unaddressed(), p.unmet(), p.unlent(), p.hostless(), p.overdrawn(), why)
}

// unlent returns why the service has no host with the volumes of others that its spec has, or "".
func (p *placer) unlent() string {
	_, why := p.lender(p.newest())
	return why
}

// lender returns the host with the volumes of other services that a spec has, or why there is none.
// A spec without such volumes has neither.
func (p *placer) lender(s pando.Spec) (at pando.HostName, why string) {
	for _, v := range s.Volumes {
		if v.Of == "" {
			continue
		}
		of := v.Owner(p.svc.ServiceKey)
		host := cmp.Or(p.w.Services[of].V.Home, p.w.Volumes[of].V.Host)
		switch {
		case host == "" && p.w.Services[of].V.Name == "":
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
	if was := p.svc.Home; at != "" && was != "" && was != at && ownVolumes(s) {
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
func (p *placer) unaddressed() string {
	if p.svc.VIP4.IsValid() {
		return ""
	}
	return "the service waits for an address"
}

// hostless returns why no host takes an instance of the service now, or "" if one does.
func (p *placer) hostless() string {
	home := p.home()
	if why := lifecycle.Homeless(p.keeper, p.here); why != "" {
		return why
	}
	at := p.standing(home)
	if home != "" && at.Takes() {
		return "" // the usual case looks at no other host
	}
	if home == "" && fitsSome(p) {
		return ""
	}
	return lifecycle.Waits(len(p.hosts()), len(p.fitting()), home, at)
}

// fitsSome reports whether a host takes new instances of the service. It looks at no host after the
// first one, because a service asks while its instances start.
func fitsSome(p *placer) bool {
	rule, lacks := p.newest().Place, p.lacking(p.nextSpec())
	for _, name := range p.w.HostNames() {
		if takesNew(p.w, name) && lifecycle.Unfit(p.w.Hosts[name].V, rule, p.apart, lacks) == "" {
			return true
		}
	}
	return false
}

// fitting returns the hosts that take new instances of the service, by its rule.
func (p *placer) fitting() []pando.Host {
	if p.fits == nil {
		p.fits = lifecycle.Fitting(p.hosts(), p.newest().Place, p.apart,
			p.lacking(p.nextSpec()))
	}
	return p.fits
}

// apart reports whether a host has instances of the service from which this one stays apart.
func (p *placer) apart(h pando.HostName) bool {
	if p.shunned == nil {
		other := pando.ServiceKey{Tenant: p.svc.Tenant, Name: p.newest().Place.Apart}
		p.shunned = p.w.HostsOf(other)
	}
	return p.shunned[h]
}

// spreads reports whether the instances of the service need no common host.
func (p *placer) spreads() bool { return p.newest().Place.Spread != "" && p.home() == "" }

// fellows returns the number of instances on a host that stay with a new one of a revision: those of
// the same revision, or alike. A reserve counts only beside another reserve.
func (p *placer) fellows(revision int, reserve bool) func(pando.HostName) int {
	same := sync.OnceValue(func() map[int]bool { return alike(p.ledger, revision) })
	of := func(h pando.HostName, revision int) int {
		n := p.crew.fellows[fellowship{h, revision, false}]
		if reserve {
			n += p.crew.fellows[fellowship{h, revision, true}]
		}
		return n
	}
	return func(h pando.HostName) int {
		if !p.here(h) {
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
func (p *placer) wish(
	s pando.Spec, home pando.HostName, fellows func(pando.HostName) int,
) lifecycle.Wish {
	return lifecycle.Wish{
		Spec: s, Rule: p.newest().Place, Home: home, Apart: p.apart, Loads: p.loads(home),
		Lacks: p.lacking(s), Fellows: fellows,
		Seats: func(h pando.HostName) (own, operators int) {
			fresh := p.load[h].Instances - p.w.LoadOn(h).Instances // of this decision
			own, operators = p.w.Seats.Of(p.svc.Tenant, h), p.w.Seats.Of(pando.DefaultTenant, h)
			if own += fresh; p.svc.Tenant == pando.DefaultTenant {
				operators += fresh
			}
			return own, operators
		},
		Beside: func(h pando.HostName) int {
			if !p.here(h) {
				return 0
			}
			return p.crew.staying[h]
		},
	}
}

// target returns the host to which a shift moves the next instance, or "".
func target(p *placer) pando.HostName {
	s := p.svc.Shift
	if s == nil || !takesNew(p.w, s.To) {
		return ""
	}
	if len(s.Instances) == 0 && p.svc.Home == s.From || slices.Contains(s.Instances, p.replaces) {
		return s.To
	}
	return ""
}

// choose finds the host of a new instance and makes it the service's home. An ordinal with volumes
// starts on their host. fellows are those that stay with it (nil: all).
func (p *placer) choose(
	s pando.Spec, volumes pando.HostName, fellows func(pando.HostName) int,
) (pando.Host, string, error) {
	if why := p.waits(); why != "" {
		return pando.Host{}, "", fmt.Errorf("%w: %s", pando.ErrNoRoom, why)
	}
	home := cmp.Or(volumes, target(p), p.home())
	h, why, err := lifecycle.Place(p.choices(home), p.wish(s, home, fellows))
	if err != nil {
		return h, why, err
	}
	if p.spreads() {
		p.svc.Home = ""
		return h, why, nil
	}
	if was := p.svc.Home; was != "" && was != h.Name {
		why := lifecycle.Moved(was, h.Name, p.standing(was))
		if s := p.svc.Shift; s != nil && s.From == was {
			why = fmt.Sprintf("it moves to %s, which is less loaded than %s", h.Name, was)
		}
		p.record(pando.DecidedHostLost, "", why, nil)
	}
	p.svc.Home = h.Name
	return h, why, nil
}

// loads returns the load of each host that may take the next instance: only the home's if there is
// one. The placer computes it once per home and adds its own placements.
func (p *placer) loads(home pando.HostName) map[pando.HostName]lifecycle.Load {
	if p.load != nil && p.loadOf == home {
		return p.load
	}
	p.load, p.loadOf = map[pando.HostName]lifecycle.Load{}, home
	for _, h := range p.choices(home) {
		if home == "" || h.Name == home {
			p.load[h.Name] = lifecycle.Load(p.w.LoadOn(h.Name))
		}
	}
	var fresh []pando.Instance
	for _, i := range p.seated() {
		if p.fresh(i.ID) {
			fresh = append(fresh, i)
		}
	}
	p.addLoad(fresh...)
	return p.load
}

// addLoad adds instances to the loads, if they are known.
func (p *placer) addLoad(instances ...pando.Instance) {
	if p.load == nil {
		return
	}
	limits := func(i pando.Instance) pando.Resources {
		s, _ := p.w.SpecOf(i.Service, i.Revision)
		return s.Resources
	}
	for h, l := range lifecycle.Loads(instances, limits) {
		p.load[h] = p.load[h].Plus(l)
	}
}

// place gives a granted replicate an instance: a warm one of the same revision if there is one,
// else a new one. It reports whether there is one.
func (p *placer) place(i pando.Intent, revision int) bool {
	o, warm := lifecycle.Claim(p.crew.reserve(), revision, p.claims(), p.fellows(revision, false))
	if !warm || i.From != "" {
		return p.placeNew(i, revision, p.role(), false)
	}
	i.Instance, i.Host, p.starts = o.ID, o.Host, true
	i.Inputs = with(i.Inputs, map[string]float64{lifecycle.Revision: float64(revision)})
	reason := fmt.Sprintf("warm on %s", o.Host)
	p.putIntent(i.Become(pando.IntentPlaced, p.now, reason))
	o.Warm, o.Intent, o.Born, o.Role, o.Replaces = false, i.ID, p.now, p.role(), p.replaces
	p.putInstance(o.Become(pando.PhasePlaced, p.now, reason))
	return true
}

// claims returns a function that reports whether an instance in reserve on a host may be taken.
func (p *placer) claims() func(pando.HostName) bool {
	home := p.home()
	if p.spreads() {
		return func(h pando.HostName) bool {
			return slices.ContainsFunc(p.fitting(), func(f pando.Host) bool { return f.Name == h })
		}
	}
	return func(h pando.HostName) bool { return h == home && p.here(home) }
}

// roomLook is the time between two looks for room. No event reports the room that other services
// leave.
const roomLook = 5 * time.Second

// own reports whether this decision itself made an intent, so that no asker waits for its answer.
func (p *placer) own(i pando.Intent) bool {
	return !slices.ContainsFunc(p.intents, func(o pando.Intent) bool { return o.ID == i.ID })
}

// heldOrdinals returns a function that reports whether a new instance of a revision cannot have an
// ordinal. Two instances cannot have one volume. An endpoint has one instance of the revision that
// stays, and instances of other revisions may serve it meanwhile.
func heldOrdinals(l *ledger, spec pando.Spec, revision int) func(int) bool {
	if len(spec.Endpoints) == 0 {
		return func(n int) bool { return l.crew.held[n] > 0 }
	}
	held, others := map[int]bool{}, alike(l, revision)
	for _, i := range l.crew.all {
		if (i.Revision == revision || others[i.Revision]) && i.Phase.May(pando.PhaseDraining) {
			held[i.Ordinal] = true
		}
	}
	return func(n int) bool { return held[n] }
}

// placeNew gives an intent a new instance, and moves it to placed. If no host has room, an ask
// moves to failed. An intent of this decision itself is not written then: it would fail at every
// look.
func (p *placer) placeNew(i pando.Intent, revision int, role pando.Role, warm bool) bool {
	spec, _ := p.spec(revision)
	o := pando.Instance{
		ID: p.name(i), Service: p.svc.ServiceKey, Revision: revision,
		Weight: 100, Role: role, Warm: warm, Phase: pando.PhasePlaced, Reason: i.Reason,
		From: i.From, Intent: i.ID, Born: p.now, Since: p.now, Replaces: p.replaces,
	}
	var volumes pando.HostName
	switch {
	case p.newest().Stateful():
		volumes = berths{p}.berth(&o)
	case spec.Ordinals():
		o.Ordinal = lifecycle.Ordinal(heldOrdinals(p.ledger, spec, revision))
		if e, ok := spec.External(o.Ordinal); ok {
			o.Weight = e.Weight
		}
	}
	host, why, err := p.choose(spec, volumes, p.fellows(revision, warm))
	switch {
	case err == nil:
	case p.own(i):
		p.roomless = err.Error()
		p.lookAgain(p.now.Add(roomLook))
		return false
	default:
		i.Instance = ""
		p.putIntent(i.Become(pando.IntentFailed, p.now, err.Error()))
		return false
	}
	p.svc.Sizes = pando.KeepSizes(p.svc.Sizes, spec, o.Ordinal)
	if o.Host = host.Name; p.newest().Stateful() {
		berths{p}.moor(o)
	}
	i.Instance, i.Host, p.starts = o.ID, host.Name, true
	i.Inputs = with(i.Inputs, map[string]float64{lifecycle.Revision: float64(revision)})
	p.putIntent(i.Become(pando.IntentPlaced, p.now, why))
	p.putInstance(o)
	p.addLoad(o)
	p.taken = p.taken.Plus(scale.Of(1, spec.Resources))
	return true
}

// namesTried bounds the search for a free name. A name has 33 million random endings.
const namesTried = 100

// name returns the proposed name if it is valid and free, else a new one. Names are unique in the
// cluster, also those of two tenants with one name of a service.
func (p *placer) name(i pando.Intent) pando.InstanceID {
	prefix := string(p.svc.Name) + "-"
	name := i.Instance
	if !strings.HasPrefix(string(name), prefix) ||
		pando.CheckLabel("instance", string(name)) != nil {
		name = p.ids.Instance(p.svc.Name)
	}
	taken := func() bool {
		_, part := p.parts[name]
		return part || p.w.HasName(name) || p.crew.has(name)
	}
	for n := 0; n < namesTried && taken(); n++ {
		name = p.ids.Instance(p.svc.Name)
	}
	return name
}

func (p *placer) role() pando.Role {
	return p.crew.count(func(pando.HostName) bool { return true }).NextRole()
}

func with(a, b map[string]float64) map[string]float64 {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]float64{}
	}
	maps.Copy(out, b)
	return out
}
