package decide

import (
	"cmp"
	"maps"
	"slices"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// keep chooses the keeper and the copies of the service's state (lifecycle.Keep). Main's head names
// the keeper in the same commit.
func (d *Draft) keep() {
	spec, known := d.spec(d.svc.Target)
	if d.forgotten || d.svc.Removing || !known || len(d.w.Hosts) == 0 ||
		spec.StateCopies < 2 && d.keeper.Host == "" {
		return
	}
	was, k := d.w.Keepers[d.svc.ServiceKey], d.svc.ServiceKey
	facts := lifecycle.Keeping{Now: d.keeper, Want: max(1, spec.StateCopies), Home: d.stateHost()}
	facts.Now.Service, facts.Now.Epoch = k, was.V.Epoch
	for _, name := range slices.Sorted(maps.Keys(d.w.Hosts)) {
		h := d.w.Hosts[name].V
		facts.Hosts = append(facts.Hosts, lifecycle.Holder{
			Name: name, Here: true, Stays: TakesNew(d.w, name), Able: h.Copies,
			Runs: d.crew.counts[name].Present,
		})
	}
	next, why := lifecycle.Keep(facts)
	if why == "" {
		return
	}
	next.Epoch, next.Reason, next.At = was.V.Epoch+1, why, d.now
	d.keeper = next
	d.puts[next.Key()] = next
	d.conds[next.Key()] = pando.Condition{Key: next.Key(), Modified: was.Modified}
	if head, ok := d.w.Heads[k]; ok && head.V.Host != next.Host {
		d.conds[head.V.Key()] = head.If()
		head.V.Host = next.Host
		d.puts[head.V.Key()] = head.V
	}
	d.record(pando.DecidedKeeper, "", "the copies of its state: "+why,
		map[string]float64{"copies": float64(len(next.Copies)), "wanted": float64(next.Want)})
}

// stateHost returns the host that has the state, or will have it, before there is a keeper.
func (d *Draft) stateHost() pando.HostName {
	if head, ok := d.w.Heads[d.svc.ServiceKey]; ok {
		return head.V.Host
	}
	var first pando.HostName
	for _, i := range d.crew.all {
		if i.Capacity() && d.here(i.Host) {
			first = i.Host
			break
		}
	}
	return cmp.Or(d.svc.Home, first)
}
