package agent

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"pando.run/pando"
)

// budget is the number of instances that a service may have, as sent to its instances.
type budget struct {
	Min int        `json:"min"`
	Max int        `json:"max"`
	Pin *pando.Pin `json:"pin"`
}

// tell sends the instances of this host the changes of a commit that concern them. The caller holds
// the lock.
func (a *Agent) tell(changes []pando.Record) {
	about := map[pando.ServiceKey][]pando.Record{}
	for _, c := range changes {
		if s, ok := c.Key.Service(); ok && len(a.crews[s]) > 0 {
			about[s] = append(about[s], c)
		}
	}
	now := a.Clock.Now()
	for _, s := range slices.SortedFunc(maps.Keys(about), pando.ServiceKey.Compare) {
		a.tellCrew(s, about[s], now)
	}
}

func (a *Agent) tellCrew(s pando.ServiceKey, changes []pando.Record, now time.Time) {
	kinds := map[pando.Kind]bool{}
	for _, c := range changes {
		kinds[c.Key.Kind()] = true
	}
	if kinds[pando.KindInstance] && a.turnover(s, changes) {
		data := map[string]int{"in_rotation": len(a.rotation[s])}
		for _, r := range a.crews[s] {
			r.events.send(now, pando.EventPeers, data)
		}
	}
	if kinds[pando.KindService] {
		svc := a.world.Services[s].V
		spec, _ := a.world.SpecOf(s, svc.Target)
		b := budget{spec.Scale.Min, spec.Scale.Max, svc.Pin}
		for _, r := range a.crews[s] {
			if !reflect.DeepEqual(b, r.told) {
				r.told = b
				r.events.send(now, pando.EventBudget, b)
			}
		}
	}
	if kinds[pando.KindHead] {
		data := map[string]string{"commit": a.world.Heads[s].V.Commit.String()}
		for _, r := range a.crews[s] {
			r.events.send(now, pando.EventState, data)
		}
	}
}

// turnover notes which instances of a service take flows after a commit and reports whether the set
// has changed. It looks at the instances in the commit. The caller holds the lock.
func (a *Agent) turnover(s pando.ServiceKey, changes []pando.Record) (changed bool) {
	in := a.rotation[s]
	if in == nil {
		in = map[pando.InstanceID]bool{}
		for _, p := range a.peers(s) {
			in[p.ID] = true
		}
		a.rotation[s] = in
		return true
	}
	for _, c := range changes {
		if c.Key.Kind() != pando.KindInstance {
			continue
		}
		id := instanceOf(c.Key)
		i := a.world.Instances[id].V
		if r := a.runners[id]; r != nil && i.Phase != "" {
			i = r.inst
		}
		if takes := i.Phase.TakesFlows(); takes != in[id] {
			changed = true
			if delete(in, id); takes {
				in[id] = true
			}
		}
	}
	return changed
}
