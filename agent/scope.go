package agent

import (
	"maps"

	"pando.run/pando"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// An agent follows the endpoints of every service, the heads of all states, and the hosts and
// members. It also follows the specs and the local instances of services that concern its host.
// It never follows intents, decisions, or the instances of other hosts.
var fixed = []pando.Key{
	pando.KindEndpoints.Under(), pando.KindHead.Under(), pando.KindHost.Under(),
	pando.KindMember.Under(), pando.KindCluster.Under(), pando.KindKeeper.Under(),
}

// once are read with every snapshot: a service without endpoints has a control of an older version,
// or is new. Its table stays as it is.
var once = []pando.Key{pando.KindService.Under()}

// scope is the set of services that concern this host: they have an instance, their home, a sandbox
// or a state here. The lock of the records guards it.
type scope struct {
	a       *Agent
	mine    map[pando.ServiceKey]bool
	kept    map[pando.ServiceKey]bool // with a state or a sandbox here, as of the last snapshot
	changed bool                      // since the last call of wanted
	// parked are services with an instance here that lacks its spec or its address.
	parked map[pando.ServiceKey]bool
	seen   pando.StoreRevision // the newest change of endpoints
}

func newScope(a *Agent) *scope {
	return &scope{
		a:    a,
		mine: map[pando.ServiceKey]bool{}, kept: map[pando.ServiceKey]bool{},
		parked: map[pando.ServiceKey]bool{},
	}
}

// wanted returns the prefixes to follow because a service concerns this host, or nil if they have
// not changed. fixed has the records of a snapshot.
func (f *scope) wanted(fixed []pando.Record) map[pando.Key]bool {
	if fixed != nil {
		f.survey(fixed)
	}
	f.a.records.Lock()
	defer f.a.records.Unlock()
	if fixed == nil && !f.changed {
		return nil
	}
	f.changed = false
	out := make(map[pando.Key]bool, 2*len(f.mine))
	for s := range f.mine {
		out[pando.RevisionsOf(s)], out[pando.InstancesOn(s, f.a.config.Host.Name)] = true, true
	}
	return out
}

// survey finds the services that concern this host in a snapshot, in the sandboxes of a former
// agent and in the states of this host.
func (f *scope) survey(fixed []pando.Record) {
	states, err := state.Services(f.a.config.States.Objects)
	if err != nil {
		f.a.config.Log.Error("list the states of this host", "error", err)
	}
	w := world.NewScoped()
	_ = w.Apply(fixed, 0) // take reports a record that cannot be read
	f.a.records.Lock()
	defer f.a.records.Unlock()
	clear(f.mine)
	clear(f.kept)
	for _, s := range states {
		f.kept[s] = true
	}
	for _, b := range f.a.found {
		f.kept[b.Service()] = true
	}
	maps.Copy(f.mine, f.kept)
	for s := range f.a.crews.Of {
		f.mine[s] = true
	}
	for _, s := range f.a.arrivals.Services(f.a.records.World) {
		f.mine[s] = true
	}
	for s, e := range w.Endpoints {
		if f.named(e.V) {
			f.mine[s] = true
		}
	}
	for s, k := range w.Keepers {
		if k.V.Holds(f.a.config.Host.Name) {
			f.mine[s] = true
		}
	}
}

// named reports whether a service's endpoints name this host.
func (f *scope) named(e pando.Endpoints) bool {
	return e.Service.Home == f.a.config.Host.Name || e.On(f.a.config.Host.Name)
}

// rescope decides whether a service concerns this host after a change.
func (f *scope) rescope(w *world.World, s pando.ServiceKey) {
	mine := f.kept[s] || f.a.arrivals.Expects(w, s) || w.Keepers[s].V.Holds(f.a.config.Host.Name) ||
		len(f.a.crews.Of[s]) > 0 || f.named(w.Endpoints[s].V)
	switch {
	case mine == f.mine[s]:
		return
	case mine:
		f.mine[s] = true
	default:
		delete(f.mine, s)
	}
	f.changed = true
}

// complete reports whether the spec and the address of an instance have arrived. They come under
// other prefixes than its record, in any order.
func (f *scope) complete(w *world.World, i pando.Instance) bool {
	_, known := w.SpecOf(i.Service, i.Revision)
	return known && w.Services[i.Service].V.VIP4.IsValid()
}

// unpark returns the instances of a service that waited for its spec or its address.
func (f *scope) unpark(w *world.World, s pando.ServiceKey) (all []pando.Instance) {
	if !f.parked[s] {
		return nil
	}
	delete(f.parked, s)
	for _, i := range append(w.Of(s), world.RunsOf(w, s)...) {
		if i.Host == f.a.config.Host.Name {
			all = append(all, i)
		}
	}
	return all
}

// obeys reports whether every instance here that control drains drains here too. Its record may
// arrive after the endpoints.
func (f *scope) obeys(w *world.World, s pando.ServiceKey) bool {
	for _, t := range w.Endpoints[s].V.Seats {
		if r, here := f.a.crews.ByName[t.Instance]; here && t.Phase == pando.PhaseDraining &&
			r.StatusIn(w).Instance.Phase.TakesFlows() {
			return false
		}
	}
	return true
}
