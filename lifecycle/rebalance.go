package lifecycle

import (
	"cmp"
	"slices"

	"pando.run/pando"
)

// Block is what one step of a rebalance may move: all instances of a service with a home, or one
// instance of a service that spreads.
type Block struct {
	Service   pando.ServiceKey
	Instances []pando.InstanceID
	Hosts     []pando.HostName // of the instances: the same one
	Resources pando.Resources  // of each instance
	// Fits reports whether a host keeps the rule of placement of the service.
	Fits func(pando.Host) bool
	// Spread is set for one instance of a service that spreads. GroupOf returns the hosts that count
	// as one, and Counts has the instances of each group. The blocks of a service share it.
	Spread  bool
	GroupOf func(pando.HostName) string
	Counts  map[string]int
}

// Relocation is one step of a rebalance.
type Relocation struct {
	Service pando.ServiceKey
	Count   int // instances
	pando.Shift
}

// These constants bound a rebalance. A step must take at least gainMin of the load off a host, so
// that nothing moves for a trifle. It considers only the hosts with the least load.
const (
	gainMin    = 0.01
	targetsMax = 8
)

// Rebalance returns at most `most` steps that make the loads of hosts more even: each moves a block
// from a loaded host to one that is less loaded afterwards than the first was before. A host's load
// is the largest share of a resource that is given away. loads changes with the steps.
func Rebalance(
	hosts []pando.Host, loads map[pando.HostName]Load, blocks []Block, most int,
) (out []Relocation) {
	on := map[pando.HostName][]*Block{}
	for n := range blocks {
		b := &blocks[n]
		on[b.Hosts[0]] = append(on[b.Hosts[0]], b)
	}
	for len(out) < most {
		b, to := bestStep(hosts, loads, on)
		if b == nil {
			return out
		}
		from, moved := b.Hosts[0], b.load()
		loads[from], loads[to.Name] = loads[from].minus(moved), loads[to.Name].Plus(moved)
		if b.Spread {
			b.Counts[b.GroupOf(from)]--
			b.Counts[b.GroupOf(to.Name)]++
		}
		// A service moves once at a time: its other instances wait for a later plan.
		for h := range on {
			on[h] = slices.DeleteFunc(on[h], func(o *Block) bool { return o.Service == b.Service })
		}
		r := Relocation{Service: b.Service, Count: len(b.Instances),
			Shift: pando.Shift{From: from, To: to.Name}}
		if b.Spread {
			r.Instances = b.Instances
		}
		out = append(out, r)
	}
	return out
}

// bestStep returns the block and the host of the step that takes the most off the most loaded host
// of which something can move.
func bestStep(
	hosts []pando.Host, loads map[pando.HostName]Load, on map[pando.HostName][]*Block,
) (best *Block, to *pando.Host) {
	order := make([]*pando.Host, len(hosts))
	for n := range hosts {
		order[n] = &hosts[n]
	}
	weight := func(h *pando.Host) float64 { return loads[h.Name].weight(h) }
	slices.SortFunc(order, func(a, b *pando.Host) int {
		return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a.Name, b.Name))
	})
	for _, from := range slices.Backward(order) {
		was := weight(from)
		least := was * (1 - gainMin)
		for _, h := range order[:min(len(order), targetsMax)] {
			if weight(h) >= least {
				break
			}
			for _, b := range on[from.Name] {
				after := max(loads[from.Name].minus(b.load()).weight(from),
					loads[h.Name].Plus(b.load()).weight(h))
				smaller := best != nil && after == least && len(b.Instances) < len(best.Instances)
				if (after < least || smaller) && b.mayGo(h, loads[h.Name]) {
					least, best, to = after, b, h
				}
			}
		}
		if best != nil {
			return best, to
		}
	}
	return nil, nil
}

// mayGo reports whether a host takes the block. A service that spreads does not become less even.
func (b *Block) mayGo(h *pando.Host, has Load) bool {
	if !has.Plus(b.load()).fits(h) || !b.Fits(*h) {
		return false
	}
	if !b.Spread {
		return true
	}
	from, to := b.GroupOf(b.Hosts[0]), b.GroupOf(h.Name)
	return from == to || b.Counts[to] < b.Counts[from]
}

// load returns the load of all instances of the block.
func (b *Block) load() (l Load) {
	for range b.Instances {
		l = l.Plus(one(b.Resources))
	}
	return l
}

// minus returns the difference of both loads.
func (l Load) minus(o Load) Load {
	return Load{
		l.Instances - o.Instances, l.MemoryBytes - o.MemoryBytes, l.PIDs - o.PIDs, l.CPUs - o.CPUs,
	}
}
