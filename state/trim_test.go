package state

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
)

// A service may commit faster than history grows old.
func TestHistoryIsBoundedByItsLengthToo(t *testing.T) {
	ctx := t.Context()
	const commits, most, newest = 100, 20, 5
	length := func(keep Keep) int {
		m := newMemory()
		r := Open(m, web, typed)
		var main pando.ObjectID
		a := must(r.Born(ctx, "a", main))
		now := t0
		for n := range commits {
			now = now.Add(time.Second)
			do(a.Put("x", fmt.Appendf(nil, "value %d", n)))
			must(a.Commit(ctx, "", now))
			push(a, &main, now)
		}
		do(a.Settle(ctx))
		known := Known{Heads: map[pando.ServiceKey]pando.ObjectID{web: main},
			Alive: func(pando.InstanceID) bool { return true }}
		must(Trim(ctx, m, known, keep, now))
		return len(must(r.Log(main, 10*commits)))
	}
	all := length(Keep{Commits: newest, Age: time.Hour})
	if all < commits {
		t.Fatalf("a young history of %d commits has %d after a trim", commits, all)
	}
	if n := length(Keep{Commits: newest, Age: time.Hour, Most: most}); n < most || n > 3*most {
		t.Errorf("%d commits are left, want about %d", n, most)
	}
	if n := length(Keep{Commits: newest, Age: time.Second, Most: most}); n < newest || n > most {
		t.Errorf("%d commits of an old history are left, want about %d", n, newest)
	}
}
