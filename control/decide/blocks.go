package decide

import (
	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// Blocks returns what a rebalance may move of the service: all instances together with their home, or
// each one of a service that spreads. A service that stops first would be down meanwhile, so it stays.
func (d *Draft) Blocks() (out []lifecycle.Block) {
	s := d.svc.ServiceKey
	if d.w.Frozen(s) != nil {
		return nil
	}
	spec, known := d.spec(d.serving())
	_, pushed := d.w.Heads[s]
	if !known || d.svc.Removing || d.rolling() || d.svc.Rolling > 0 || d.svc.Renew != nil ||
		spec.IsJob() || spec.Stateful() || spec.Ordinals() || len(spec.Volumes)+len(spec.State) > 0 ||
		pushed || d.keeper.Host != "" || d.stopFirst() {
		return nil
	}
	spreads := d.newest().Place.Spread != ""
	counts := map[string]int{}
	block := lifecycle.Block{Service: s, Resources: spec.Resources}
	lacks := d.lacking(spec)
	block.Fits = func(h pando.Host) bool {
		return lifecycle.Unfit(h, d.newest().Place, d.apart, lacks) == ""
	}
	for _, i := range d.crew.all {
		if i.Phase.Leaving() {
			continue
		}
		if !i.Phase.TakesFlows() || i.Move != nil || !d.here(i.Host) {
			return nil // it is on its way, and so is what it replaces
		}
		counts[d.groupOf(i.Host)]++
		block.Instances = append(block.Instances, i.ID)
		block.Hosts = append(block.Hosts, i.Host)
	}
	if len(block.Instances) == 0 {
		return nil
	}
	if !spreads {
		for _, h := range block.Hosts {
			if h != d.svc.Home {
				return nil
			}
		}
		return []lifecycle.Block{block}
	}
	for n := range block.Instances {
		one := block
		one.Instances, one.Hosts = block.Instances[n:n+1], block.Hosts[n:n+1]
		one.Spread, one.GroupOf, one.Counts = true, d.groupOf, counts
		out = append(out, one)
	}
	return out
}
