package agent

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// An instance whose shim does not answer stays in rotation. Its line and its host name it, until
// the shim answers.
func TestASilentShimIsNamed(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		was := b.world().Instances["web-1"].V.Reason
		shim := b.sandboxes.All()[0]
		shim.Silence("it is stopped")
		b.pass(time.Second)
		i := b.world().Instances["web-1"].V
		l, err := b.agent.Losses(b.ctx)
		if b.ok(err); i.Phase != pando.PhaseInRotation || !strings.Contains(i.Reason, "it is stopped") ||
			l.Silent != "web-1 (it is stopped)" {
			t.Errorf("its line: %s, %s; its host: %q", i.Phase, i.Reason, l.Silent)
		}
		shim.Silence("")
		b.pass(time.Second)
		i = b.world().Instances["web-1"].V
		if l, err = b.agent.Losses(b.ctx); err != nil || i.Reason != was || l.Silent != "" {
			t.Errorf("once it answers: %s, want %s; its host: %q, %v", i.Reason, was, l.Silent, err)
		}
	})
}
