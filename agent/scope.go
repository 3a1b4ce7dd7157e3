package agent

import (
	"maps"

	"pando.run/pando"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// An agent follows the endpoints of every service, the heads of all states, and the hosts and
// members. Of the services that concern its host it also follows the specs and the instances here.
// It never follows intents, decisions, or the instances of other hosts.
var fixed = []pando.Key{
	pando.KindEndpoints.Under(), pando.KindHead.Under(), pando.KindHost.Under(),
	pando.KindMember.Under(),
}

// once are read with every snapshot: a service without endpoints has a control of an older version,
// or is new. Its table stays as it is.
var once = []pando.Key{pando.KindService.Under()}

// scope is the set of services that concern this host: they have an instance, their home, a sandbox
// or a state here. The lock of the records guards it.
type scope struct {
	mine    map[pando.ServiceKey]bool
	kept    map[pando.ServiceKey]bool // with a state or a sandbox here, as of the last snapshot
	changed bool                      // since the last call of wanted
	// parked are services with an instance here whose spec or address has not arrived yet.
	parked map[pando.ServiceKey]bool
	seen   pando.StoreRevision // the newest change of endpoints
}

func newScope() scope {
	return scope{
		mine: map[pando.ServiceKey]bool{}, kept: map[pando.ServiceKey]bool{},
		parked: map[pando.ServiceKey]bool{},
	}
}

// following returns the scope for the follower of the store.
func (a *Agent) following() world.Scope {
	return world.Scope{
		Fixed: fixed, Once: once, Wanted: a.wanted, Take: a.take,
		Keys: func(p pando.Key) (keys []pando.Key) {
			a.read(func(w *world.World) { keys = w.Keys(p) })
			return keys
		},
		Left: func(p pando.Key) { a.read(func(w *world.World) { w.Leave(p) }) },
	}
}

// wanted returns the prefixes to follow because a service concerns this host, or nil if they have
// not changed. fixed has the records of a snapshot.
func (a *Agent) wanted(fixed []pando.Record) map[pando.Key]bool {
	if fixed != nil {
		a.survey(fixed)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if fixed == nil && !a.scope.changed {
		return nil
	}
	a.scope.changed = false
	out := make(map[pando.Key]bool, 2*len(a.scope.mine))
	for s := range a.scope.mine {
		out[pando.RevisionsOf(s)], out[pando.InstancesOn(s, a.Host.Name)] = true, true
	}
	return out
}

// survey finds the services that concern this host in a snapshot, in the sandboxes of a former
// agent and in the states of this host.
func (a *Agent) survey(fixed []pando.Record) {
	states, err := state.Services(a.Objects)
	if err != nil {
		a.Log.Error("list the states of this host", "error", err)
	}
	w := world.NewScoped()
	_ = w.Apply(fixed, 0) // take reports a record that cannot be read
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.scope.mine)
	clear(a.scope.kept)
	for _, s := range states {
		a.scope.kept[s] = true
	}
	for _, b := range a.found {
		a.scope.kept[b.Service()] = true
	}
	maps.Copy(a.scope.mine, a.scope.kept)
	for s := range a.crews.of {
		a.scope.mine[s] = true
	}
	for s, e := range w.Endpoints {
		if a.named(e.V) {
			a.scope.mine[s] = true
		}
	}
}

// named reports whether a service's endpoints name this host.
func (a *Agent) named(e pando.Endpoints) bool {
	return e.Service.Home == a.Host.Name || e.On(a.Host.Name)
}

// rescope decides whether a service concerns this host after a change. The caller holds the lock.
func (a *Agent) rescope(s pando.ServiceKey) {
	mine := a.scope.kept[s] || len(a.crews.of[s]) > 0 || a.named(a.world.Endpoints[s].V)
	switch {
	case mine == a.scope.mine[s]:
		return
	case mine:
		a.scope.mine[s] = true
	default:
		delete(a.scope.mine, s)
	}
	a.scope.changed = true
}

// complete reports whether the spec and the address of an instance have arrived. They come under
// other prefixes than its record, in any order. The caller holds the lock.
func (a *Agent) complete(i pando.Instance) bool {
	_, known := a.world.SpecOf(i.Service, i.Revision)
	return known && a.world.Services[i.Service].V.VIP4.IsValid()
}

// unpark starts the runners of a service that waited for its spec or its address. The caller holds
// the lock.
func (a *Agent) unpark(s pando.ServiceKey) {
	if !a.scope.parked[s] {
		return
	}
	delete(a.scope.parked, s)
	for _, i := range a.world.Of(s) {
		if i.Host == a.Host.Name {
			a.see(i)
		}
	}
}
