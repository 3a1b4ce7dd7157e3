package agent

import (
	"testing"
	"time"

	"pando.run/pando"
)

// A sandbox that cannot be removed may still run its program. Its record stays until it is removed,
// so control starts no other one in its place, and nothing is left behind.
func TestASandboxThatCannotBeRemovedKeepsItsRecord(t *testing.T) {
	for name, end := range map[string]func(b *bench){
		"after a drain": func(b *bench) { b.drain("web-1", true) },
		"after a crash": func(b *bench) { b.sandboxes.All()[0].Crash() },
		"without a record": func(b *bench) {
			v := b.world().Instances["web-1"]
			if _, err := b.commit(b.ctx, pando.Txn{Delete: []pando.Key{v.V.Key()}}); err != nil {
				b.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.serving("web-1", 1)
				const failures = 6
				b.steering.Fail("Remove", failures)
				end(b)
				for range 600 {
					b.pass(100 * time.Millisecond)
					_, recorded := b.world().Instances["web-1"]
					if there := len(b.sandboxes.All()) > 0; there && !recorded && name != "without a record" {
						t.Fatal("the record of a sandbox that is still there is gone")
					}
				}
				if n := b.steering.Calls("Remove"); n != failures+1 {
					t.Errorf("the sandbox was removed %d times, want %d", n, failures+1)
				}
				b.gone("web-1")
			})
		})
	}
}
