package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
)

// A service without a `state:` in its spec moves when its host is away, and may still push. A
// commit of an instance on the first host can then not be merged. The commit stays on the first
// host, and the instance ends.
func TestABranchWhoseMainIsOnAnotherHostStaysAndItsInstanceEnds(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.write("web-1", "committed before the move", true)
		head := pando.StateHead{Service: web, Commit: pando.ObjectID{7}, Host: "h2", At: time.Now(),
			Merges: 1}
		b.put(head)
		_, err := b.agent.self.StatePush(b.ctx, "web-1")
		if b.refused(err); err != nil && !strings.Contains(err.Error(), "its state is on h2") {
			t.Errorf("the push says %q", err)
		}
		b.drain("web-1", true)
		time.Sleep(time.Second)
		synctest.Wait()
		if i, ok := b.world().Instances["web-1"]; ok {
			t.Errorf("it is still there: %s (%s)", i.V.Phase, i.V.Reason)
		}
		if n := len(b.agent.crews.ByName) + len(b.sandboxes.All()); n > 0 {
			t.Errorf("%d runners and sandboxes are left", n)
		}
		said := 0
		for _, d := range b.world().DecisionsOf(web) {
			if d.Kind == pando.DecidedSalvage && strings.Contains(d.Reason, "h2") {
				said++
			}
		}
		if said != 1 {
			t.Errorf("it was put on record %d times", said)
		}
		b.restart()
		branches, err := state.Branches(b.objects, web)
		if b.ok(err); branches["web-1"].IsZero() {
			t.Error("its commits are gone")
		}
		if _, err := b.commit(b.ctx,
			pando.Txn{Delete: []pando.Key{head.Key(), b.world().Services[web].V.Key()}}); err != nil {
			t.Fatal(err)
		}
		b.restart()
		b.gone("web-1") // purged: no merge can ever need it
	})
}
