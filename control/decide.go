package control

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
	"pando.run/pando/world"
)

// self is the asker of control's own intents and decisions.
var self = pando.Asker{Kind: pando.AskerControl}

// Decide returns one transaction for one service and the time of the next look (zero: after the
// next change). It is a function of the world, the time and the asks that the store does not have
// yet. The transaction writes these asks together with their answers.
func Decide(w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs, asks ...pando.Intent) (pando.Txn, time.Time) {
	d, ok := newDraft(w, s, now, ids)
	if !ok {
		return pando.Txn{}, time.Time{}
	}
	d.hear(asks)
	d.address()
	d.liftPin()
	d.evacuate()
	d.answerAsks()
	switch spec, known := d.spec(d.serving()); {
	case d.svc.Removing:
		d.remove()
	case !known:
		// The revision's record arrives with the service's record, in a later message.
	case d.svc.Target != d.svc.Current && d.svc.Current != 0:
		d.roll(spec)
	default:
		d.hold(spec)
	}
	d.judge()
	d.trim()
	return d.txn(), d.wake
}

// draft is one decision in the making: the records, with the changes decided so far.
type draft struct {
	w         *world.World
	now       time.Time
	ids       pando.IDs
	before    world.Versioned[pando.Service]
	svc       pando.Service
	instances []pando.Instance // of the service, as they will be
	decisions []pando.Decision // about it, as they were
	intents   []pando.Intent
	puts      map[pando.Key]pando.Stored
	deletes   []pando.Key
	conds     map[pando.Key]pando.Condition
	wake      time.Time
	forgotten bool // the service's records are deleted, all or the next part of them
	starts    bool // an instance is placed
	load      map[pando.HostName]lifecycle.Load
	loadOf    pando.HostName // the host of load, or "" for all hosts
}

func newDraft(w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs) (*draft, bool) {
	svc, ok := w.Services[s]
	if !ok {
		return nil, false
	}
	return &draft{
		w: w, now: now, ids: ids, before: svc, svc: svc.V,
		instances: w.Of(s), decisions: w.DecisionsOf(s), intents: w.IntentsOf(s),
		puts: map[pando.Key]pando.Stored{}, conds: map[pando.Key]pando.Condition{},
	}, true
}

// hear adds the asks that the store does not have. The decision fails with a conflict if an ask is
// written before it.
func (d *draft) hear(asks []pando.Intent) {
	for _, i := range asks {
		_, written := d.w.Intents[i.ID]
		// An asker sends the same ask again after its connection broke.
		if _, heard := d.conds[i.Key()]; written || heard {
			continue
		}
		d.intents = append(d.intents, i)
		d.conds[i.Key()] = pando.Condition{Key: i.Key()}
	}
	if len(asks) > 0 {
		slices.SortFunc(d.intents, func(a, b pando.Intent) int { return cmp.Compare(a.ID, b.ID) })
	}
}

// txn returns the transaction of the draft. Every overwrite is conditioned on the version that the
// draft read.
func (d *draft) txn() pando.Txn {
	// A decision that places an instance also writes the service's record. Otherwise two unaware
	// decisions could fill the same gap. They could be those of a leader and its successor, or two of
	// one leader after a commit without an answer. With the write, the second one conflicts.
	if !d.forgotten && (d.starts || !equal(d.svc, d.before.V)) {
		d.puts[d.svc.Key()] = d.svc
		d.conds[d.svc.Key()] = d.before.If()
	}
	t := pando.Txn{Delete: d.deletes}
	for _, k := range slices.Sorted(maps.Keys(d.puts)) {
		t.Put = append(t.Put, d.puts[k])
	}
	for _, k := range slices.Sorted(maps.Keys(d.conds)) {
		t.If = append(t.If, d.conds[k])
	}
	return t
}

func equal(a, b pando.Service) bool {
	x, errA := world.Encode(a)
	y, errB := world.Encode(b)
	return errA == nil && errB == nil && string(x) == string(y)
}

// operationsMax bounds a decision, which starts nothing new after this many writes. The store
// refuses more than 1,024 operations in one transaction, at every attempt. The next decision
// follows as soon as this part is written.
const operationsMax = 200

// full reports whether the decision is large enough. It then schedules the rest for an immediate
// look.
func (d *draft) full() bool {
	if len(d.puts)+len(d.deletes) < operationsMax {
		return false
	}
	d.lookAgain(d.now)
	return true
}

func (d *draft) lookAgain(at time.Time) {
	if !at.IsZero() && (d.wake.IsZero() || at.Before(d.wake)) {
		d.wake = at
	}
}

// serving returns the revision of a new instance outside a rollout.
func (d *draft) serving() int { return cmp.Or(d.svc.Current, d.svc.Target) }

func (d *draft) spec(revision int) (pando.Spec, bool) { return d.w.SpecOf(d.svc.ServiceKey, revision) }

// newest returns the spec that bounds the service: the target's, as the operator last deployed it.
func (d *draft) newest() pando.Spec {
	s, _ := d.spec(d.svc.Target)
	return s
}

func (d *draft) decide(kind pando.DecisionKind, by pando.Asker, i pando.InstanceID, reason string, inputs map[string]float64, lines ...string) {
	v := pando.Decision{
		ID: d.ids.Sequential(d.now), Service: d.svc.ServiceKey, Instance: i, Kind: kind,
		By: by, Reason: reason, Inputs: inputs, Lines: lines, At: d.now,
	}
	d.puts[v.Key()] = v
}

func (d *draft) putIntent(i pando.Intent) {
	if known, ok := d.w.Intents[i.ID]; ok {
		d.conds[i.Key()] = known.If()
	}
	d.puts[i.Key()] = i
}

func (d *draft) putInstance(i pando.Instance) {
	// A new instance must have a free name.
	d.conds[i.Key()] = pando.Condition{Key: i.Key(), Modified: d.w.Instances[i.ID].Modified}
	d.puts[i.Key()] = i
	at := slices.IndexFunc(d.instances, func(o pando.Instance) bool { return o.ID == i.ID })
	if at >= 0 {
		d.instances[at] = i
		return
	}
	d.instances = append(d.instances, i)
	if d.load != nil {
		of := lifecycle.Loads([]pando.Instance{i}, d.resources)
		d.load[i.Host] = d.load[i.Host].Plus(of[i.Host])
	}
}

// reachable returns the instances on hosts with a lease. Instances on other hosts may run, but
// they do not count while another host can take the service. They count again when their host
// returns.
func (d *draft) reachable() []pando.Instance {
	all, home := reachable(d.w, d.instances), d.home()
	if home == "" || len(d.w.Hosts) == 0 {
		return all
	}
	// Instances outside the home do not count. bringHome decides about them.
	return slices.DeleteFunc(slices.Clone(all), func(i pando.Instance) bool { return i.Host != home })
}

func reachable(w *world.World, all []pando.Instance) []pando.Instance {
	lost := func(i pando.Instance) bool {
		_, alive := w.Hosts[i.Host]
		return !alive
	}
	if len(w.Hosts) == 0 || !slices.ContainsFunc(all, lost) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), lost)
}

func (d *draft) budget() scale.Budget {
	return scale.Budget{
		Scale: d.newest().Scale, Pin: d.svc.Pin, Removing: d.svc.Removing,
		Instances: d.reachable(), Grants: d.grants(),
	}
}

// grants returns the grants of the last second, read from the intents' own histories.
func (d *draft) grants() []scale.Grant {
	var out []scale.Grant
	seen := map[pando.IntentID]bool{}
	add := func(i pando.Intent) {
		if i.Verb != pando.VerbReplicate || i.By.Kind == pando.AskerControl || seen[i.ID] {
			return
		}
		for _, t := range i.History {
			if t.State == pando.IntentGranted && d.now.Sub(t.At) <= time.Second {
				seen[i.ID] = true
				out = append(out, scale.Grant{Intent: i.ID, By: i.By, Instance: i.Instance, At: t.At})
			}
		}
	}
	for _, v := range d.puts {
		if i, ok := v.(pando.Intent); ok {
			add(i)
		}
	}
	for _, i := range d.intents { // all of them: an old ask may have been granted just now
		add(i)
	}
	slices.SortFunc(out, func(a, b scale.Grant) int { return a.At.Compare(b.At) })
	return out
}

// answerAsks grants, refuses or coalesces every waiting ask, in the order in which they were asked.
func (d *draft) answerAsks() {
	for _, i := range d.intents {
		if i.State != pando.IntentAsked {
			continue
		}
		if d.full() {
			return
		}
		switch i.Verb {
		case pando.VerbReplicate:
			d.answerReplicate(i)
		case pando.VerbHalt:
			d.answerHalt(i)
		}
	}
}

func (d *draft) answerReplicate(i pando.Intent) {
	v := scale.Replicate(d.budget(), i.By, d.now)
	i.Inputs = with(i.Inputs, v.Inputs)
	if _, most, _ := d.bounds(d.newest()); v.State == pando.IntentGranted && d.room(most) <= 0 {
		v.State = pando.IntentRefused
		v.Reason = fmt.Sprintf("of max %d instances one still ends (rollout.order stop-first)", most)
	}
	switch v.State {
	case pando.IntentGranted:
		if d.svc.Target != d.svc.Current && d.svc.Current != 0 {
			d.svc.Rolling++
			d.place(i.Become(v.State, d.now, v.Reason), d.svc.Target)
			return
		}
		d.place(i.Become(v.State, d.now, v.Reason), d.serving())
	case pando.IntentCoalesced:
		i.Instance = v.With.Instance
		d.putIntent(i.Become(v.State, d.now, v.Reason))
	default:
		i.Instance = ""
		d.putIntent(i.Become(v.State, d.now, v.Reason))
	}
}

func (d *draft) answerHalt(i pando.Intent) {
	at := slices.IndexFunc(d.instances, func(o pando.Instance) bool { return o.ID == i.Instance })
	if at < 0 {
		d.putIntent(i.Become(pando.IntentRefused, d.now, "there is no such instance"))
		return
	}
	v := scale.Halt(d.budget(), d.instances[at], i.By, d.now)
	i.Inputs = with(i.Inputs, v.Inputs)
	i = i.Become(v.State, d.now, v.Reason)
	if v.State != pando.IntentGranted {
		d.putIntent(i)
		return
	}
	if d.svc.Rolling > 0 && d.instances[at].Revision == d.svc.Target {
		d.svc.Rolling = max(1, d.svc.Rolling-1)
	}
	walk := i.By.Kind != pando.AskerInstance
	d.takeOut(d.instances[at], i, walk, v.Reason)
}

// takeOut makes the instance drain. The halt intent is granted already.
func (d *draft) takeOut(i pando.Instance, halt pando.Intent, walk bool, reason string) {
	halt.Instance, halt.Host = i.ID, i.Host
	d.putIntent(halt.Become(pando.IntentDraining, d.now, reason))
	i.Halt, i.Walk = halt.ID, walk
	d.putInstance(i.Become(pando.PhaseDraining, d.now, reason))
}

// drain takes an instance out on control's own behalf. It leaves instances that this decision has
// placed to the next decision.
func (d *draft) drain(i pando.Instance, reason string) {
	if d.fresh(i) {
		return
	}
	d.takeOut(i, d.ask(pando.VerbHalt, reason), true, reason)
}

// fresh reports whether this decision created the instance.
func (d *draft) fresh(i pando.Instance) bool {
	_, known := d.w.Instances[i.ID]
	return !known
}

// ask makes a granted intent of control's own.
func (d *draft) ask(v pando.Verb, reason string) pando.Intent {
	i := pando.Intent{ID: pando.IntentID(d.ids.Sequential(d.now)), Service: d.svc.ServiceKey, Verb: v, By: self}
	return i.Become(pando.IntentAsked, d.now, reason).Become(pando.IntentGranted, d.now, reason)
}

// place gives a granted replicate an instance: a warm one of the same revision if there is one,
// else a new one.
func (d *draft) place(i pando.Intent, revision int) {
	home := d.home()
	for _, o := range d.instances {
		if o.Phase != pando.PhaseWarm || o.Revision != revision || o.Host != home || !d.here(home) {
			continue
		}
		i.Instance, i.Host, d.starts = o.ID, o.Host, true
		i.Inputs = with(i.Inputs, map[string]float64{lifecycle.Revision: float64(revision)})
		reason := fmt.Sprintf("warm on %s", o.Host)
		d.putIntent(i.Become(pando.IntentPlaced, d.now, reason))
		o.Warm, o.Intent, o.Born, o.Role = false, i.ID, d.now, d.role()
		d.putInstance(o.Become(pando.PhasePlaced, d.now, reason))
		return
	}
	if o, ok := d.placeNew(&i, revision); ok {
		o.Role = d.role()
		d.putInstance(o)
	}
}

// placeNew finds a host for a new instance. It moves the intent to placed, or to failed if there is
// no host.
func (d *draft) placeNew(i *pando.Intent, revision int) (pando.Instance, bool) {
	spec, _ := d.spec(revision)
	host, why, err := d.choose(spec)
	if err != nil {
		i.Instance = ""
		d.putIntent(i.Become(pando.IntentFailed, d.now, err.Error()))
		return pando.Instance{}, false
	}
	o := pando.Instance{
		ID: d.name(*i), Service: d.svc.ServiceKey, Host: host.Name, Revision: revision,
		Weight: 100, Phase: pando.PhasePlaced, Reason: i.Reason, Intent: i.ID, Born: d.now, Since: d.now,
	}
	i.Instance, i.Host, d.starts = o.ID, host.Name, true
	i.Inputs = with(i.Inputs, map[string]float64{lifecycle.Revision: float64(revision)})
	d.putIntent(i.Become(pando.IntentPlaced, d.now, why))
	return o, true
}

// name returns the proposed name if it is valid and free, else a new one.
func (d *draft) name(i pando.Intent) pando.InstanceID {
	_, used := d.w.Instances[i.Instance]
	used = used || slices.ContainsFunc(d.instances, func(o pando.Instance) bool { return o.ID == i.Instance })
	if used || !strings.HasPrefix(string(i.Instance), string(d.svc.Name)+"-") || pando.CheckLabel("instance", string(i.Instance)) != nil {
		return d.ids.Instance(d.svc.Name)
	}
	return i.Instance
}

func (d *draft) role() pando.Role {
	if scale.Capacity(d.instances) == 0 {
		return pando.RoleFirst
	}
	return pando.RoleReplica
}

// hosts returns the hosts that take new instances.
func (d *draft) hosts() []pando.Host {
	var out []pando.Host
	for _, name := range slices.Sorted(maps.Keys(d.w.Hosts)) {
		if h := d.w.Hosts[name].V; !h.Leaving {
			out = append(out, h)
		}
	}
	return out
}

// loads returns the load of each host that may take the next instance: only the home's if there is
// one. The draft computes it once per home and adds its own placements.
func (d *draft) loads(home pando.HostName) map[pando.HostName]lifecycle.Load {
	if d.load != nil && d.loadOf == home {
		return d.load
	}
	d.load, d.loadOf = map[pando.HostName]lifecycle.Load{}, home
	for _, h := range d.hosts() {
		if home != "" && h.Name != home {
			continue
		}
		maps.Copy(d.load, lifecycle.Loads(d.w.On(h.Name), d.resources))
	}
	fresh := slices.DeleteFunc(slices.Clone(d.instances), func(i pando.Instance) bool { return !d.fresh(i) })
	for h, l := range lifecycle.Loads(fresh, d.resources) {
		d.load[h] = d.load[h].Plus(l)
	}
	return d.load
}

func with(a, b map[string]float64) map[string]float64 {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]float64{}
	}
	maps.Copy(out, b)
	return out
}
