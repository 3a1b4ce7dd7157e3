package lifecycle

import (
	"fmt"
	"testing"

	"pando.run/pando"
)

// cluster returns hosts, the blocks of services with a home, and the loads of the blocks. counts has
// the instances of each service on each host.
func cluster(counts ...[]int) (hosts []pando.Host, loads map[pando.HostName]Load, all []Block) {
	loads = map[pando.HostName]Load{}
	for n, services := range counts {
		h := pando.HostName(fmt.Sprintf("h%d", n+1))
		hosts = append(hosts, pando.Host{Name: h})
		for k, instances := range services {
			b := Block{Service: pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%d-%d", n+1, k+1))),
				Fits: func(pando.Host) bool { return true }}
			for i := range instances {
				b.Instances = append(b.Instances, pando.InstanceID(fmt.Sprintf("%s-%d", b.Service.Name, i)))
				b.Hosts = append(b.Hosts, h)
			}
			loads[h] = loads[h].Plus(b.load())
			all = append(all, b)
		}
	}
	return hosts, loads, all
}

func TestARebalanceMovesNoMoreThanItHasTo(t *testing.T) {
	only := func(h pando.HostName) func([]Block) {
		return func(all []Block) {
			for n := range all {
				all[n].Fits = func(o pando.Host) bool { return o.Name == h }
			}
		}
	}
	for name, c := range map[string]struct {
		counts [][]int
		change func([]Block)
		want   []int // instances of each host at the end
		steps  int
	}{
		"an empty host":            {counts: [][]int{{1, 1, 1, 1, 1}, {}}, want: []int{3, 2}, steps: 2},
		"two empty hosts":          {counts: [][]int{{1, 1, 1, 1, 1, 1}, {}, {}}, want: []int{2, 2, 2}, steps: 4},
		"even already":             {counts: [][]int{{1, 1, 1}, {1, 1}}, want: []int{3, 2}},
		"one large service":        {counts: [][]int{{6}, {}}, want: []int{6, 0}},
		"a large and a small one":  {counts: [][]int{{6, 1}, {}}, want: []int{6, 1}, steps: 1},
		"a service moves as whole": {counts: [][]int{{3, 3}, {1}}, want: []int{3, 4}, steps: 1},
		"a rule": {counts: [][]int{{1, 1, 1, 1}, {}, {}}, change: only("h3"), want: []int{2, 0, 2},
			steps: 2},
		"the fullest cannot": {counts: [][]int{{9}, {1, 1, 1, 1}, {}}, want: []int{9, 2, 2}, steps: 2},
	} {
		hosts, loads, all := cluster(c.counts...)
		if c.change != nil {
			c.change(all)
		}
		steps := Rebalance(hosts, loads, all, 100)
		for n, h := range hosts {
			if loads[h.Name].Instances != c.want[n] || len(steps) != c.steps {
				t.Errorf("%s: %s has %d instances after %d steps, want %d after %d: %+v", name, h.Name,
					loads[h.Name].Instances, len(steps), c.want[n], c.steps, steps)
			}
		}
	}
}

// Memory counts, a full host takes nothing, and the number of steps is bounded.
func TestARebalanceKeepsToTheRoomOfHosts(t *testing.T) {
	hosts, loads, all := cluster([]int{1, 1, 1, 1}, []int{})
	for n := range all {
		all[n].Resources.MemoryBytes = 100
	}
	loads["h1"] = Load{Instances: 4, MemoryBytes: 400}
	hosts[0].Memory, hosts[1].Memory = 1000, 150
	if got := Rebalance(hosts, loads, all, 100); len(got) != 0 {
		t.Errorf("it gives a small host a larger share: %+v", got)
	}
	hosts[1].Memory = 1000
	if got := Rebalance(hosts, loads, all, 1); len(got) != 1 {
		t.Errorf("%d steps, want 1", len(got))
	}
}

// A service that spreads never becomes less even.
func TestARebalanceKeepsASpreadEven(t *testing.T) {
	hosts, loads, all := cluster([]int{1, 1, 1, 1, 1}, []int{}, []int{})
	loads["h1"] = Load{Instances: 5}
	counts := map[string]int{"h1": 1, "h2": 1}
	block := all[0]
	block.Spread, block.Counts = true, counts
	block.GroupOf = func(h pando.HostName) string { return string(h) }
	got := Rebalance(hosts, loads, []Block{block}, 100)
	if len(got) != 1 || got[0].To != "h3" || len(got[0].Instances) != 1 || counts["h3"] != 1 {
		t.Errorf("the steps are %+v, the counts %v", got, counts)
	}
}
