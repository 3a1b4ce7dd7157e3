package decide

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/scale"
)

func contains(all []pando.Instance, id pando.InstanceID) bool {
	return slices.ContainsFunc(all, func(i pando.Instance) bool { return i.ID == id })
}

// The indexes of a crew are those of its instances, after any changes.
func TestACrewIndexesItsInstancesAfterEveryChange(t *testing.T) {
	phases := []pando.Phase{
		pando.PhasePlaced, pando.PhaseWarm, pando.PhaseInRotation, pando.PhaseDraining,
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(n int) pando.Instance {
			return pando.Instance{
				ID: pando.InstanceID(fmt.Sprint("web-", n)), Host: pando.HostName(fmt.Sprint("h", n%2)),
				Revision: rapid.IntRange(1, 3).Draw(t, "revision"),
				Phase:    rapid.SampledFrom(phases).Draw(t, "phase"), Warm: rapid.Bool().Draw(t, "warm"),
			}
		}
		var stored []pando.Instance
		for n := range rapid.IntRange(0, 8).Draw(t, "stored") {
			stored = append(stored, draw(n))
		}
		warm := slices.DeleteFunc(slices.Clone(stored), func(i pando.Instance) bool {
			return i.Phase != pando.PhaseWarm
		})
		c := newCrew(stored)
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			n := rapid.IntRange(0, 11).Draw(t, "which")
			id := pando.InstanceID(fmt.Sprint("web-", n))
			if rapid.IntRange(0, 5).Draw(t, "drop") == 0 {
				c.drop(map[pando.InstanceID]bool{id: true})
			} else if i := draw(n); i.Phase != pando.PhaseWarm { // a decision warms no instance
				c.put(i)
			}
			if has := c.has(id); has != contains(c.all, id) {
				t.Fatalf("%s is there: %t", id, has)
			}
		}
		on := map[pando.HostName]scale.Count{}
		revisions := map[int]int{}
		for n, i := range c.all {
			on[i.Host] = on[i.Host].With(i)
			revisions[i.Revision]++
			if got, ok := c.get(i.ID); !ok || got != c.all[n] {
				t.Fatalf("%s is %+v, want %+v", i.ID, got, c.all[n])
			}
		}
		for h := range c.counts {
			if got := c.count(func(o pando.HostName) bool { return o == h }); got != on[h] {
				t.Fatalf("on %s are %+v, want %+v", h, got, on[h])
			}
		}
		for r, n := range c.revisions {
			if n != revisions[r] {
				t.Fatalf("%d of revision %d, want %d", n, r, revisions[r])
			}
		}
		for _, i := range c.reserve() {
			if i.Phase != pando.PhaseWarm || !contains(warm, i.ID) {
				t.Fatalf("%s is %s and in reserve", i.ID, i.Phase)
			}
		}
	})
}
