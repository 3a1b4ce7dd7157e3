package state

import (
	"errors"
	"fmt"
	"strings"
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

// An instance that never writes holds one commit and no history, while others commit often. Its
// first write much later merges as if nothing had been cut, and a lost answer repeats no change.
func TestAnIdleBranchHoldsNoHistory(t *testing.T) {
	const commits, newest = 200, 5
	for _, lost := range []bool{false, true} {
		ctx, m, now := t.Context(), newMemory(), t0
		r := Open(m, web, typed)
		var main pando.ObjectID
		writer := must(r.Born(ctx, "writer", main))
		do(writer.Put("kept", []byte("x")))
		do(writer.Put("gone", []byte("x")))
		push(writer, &main, now)
		reader := must(r.Born(ctx, "reader", main))
		for range commits {
			now = now.Add(time.Second)
			do(writer.Patch("hits", []byte("1")))
			push(writer, &main, now)
		}
		do(writer.Settle(ctx))
		known := Known{Heads: map[pando.ServiceKey]pando.ObjectID{web: main},
			Alive: func(pando.InstanceID) bool { return true }}
		must(Trim(ctx, m, known, Keep{Commits: newest}, now))
		if n := len(must(r.Log(main, 10*commits))); n < newest || n > 2*newest {
			t.Fatalf("%d commits are kept for an idle branch, want about %d", n, newest)
		}
		do(reader.Patch("hits", []byte("1000")))
		do(reader.Delete("gone"))
		if lost { // the agent ends after its first push moved main, and before it noted that
			must(reader.Commit(ctx, "first", now))
			id, _, err := reader.Merge(ctx, main, now)
			do(err)
			main = id
			reader = must(r.Born(ctx, "reader", main))
		}
		push(reader, &main, now.Add(time.Second))
		if got := text(r, main, "hits"); got != "1200" {
			t.Errorf("lost %t: main has %s hits, want 1200", lost, got)
		}
		if kept, gone := text(r, main, "kept"), text(r, main, "gone"); kept != "x" || gone != "" {
			t.Errorf("lost %t: kept %q, gone %q: want the deletion alone", lost, kept, gone)
		}
	}
}

// An agent that starts anew is not sure whether main has its branches' commits. The history behind
// an idle branch was cut; its next commit still merges against the commit where it began.
func TestAnIdleBranchOfAFormerAgentMergesOnce(t *testing.T) {
	ctx, m, now := t.Context(), newMemory(), t0
	r := Open(m, web, typed)
	var main pando.ObjectID
	writer := must(r.Born(ctx, "writer", main))
	do(writer.Patch("hits", []byte("1")))
	do(writer.Put("gone", []byte("x")))
	push(writer, &main, now)
	must(r.Born(ctx, "reader", main))
	old := main
	for range 50 {
		now = now.Add(time.Second)
		do(writer.Patch("hits", []byte("1")))
		push(writer, &main, now)
	}
	do(writer.Settle(ctx))
	known := Known{Heads: map[pando.ServiceKey]pando.ObjectID{web: main},
		Alive: func(pando.InstanceID) bool { return true }}
	must(Trim(ctx, m, known, Keep{Commits: 2}, now))
	reader := must(r.Born(ctx, "reader", old)) // its agent has no newer main yet
	do(reader.Delete("gone"))
	do(reader.Patch("hits", []byte("5")))
	must(reader.Commit(ctx, "late", now))
	reader = must(r.Born(ctx, "reader", old)) // unsure whether this commit was pushed
	push(reader, &main, now.Add(time.Second))
	if hits, gone := text(r, main, "hits"), text(r, main, "gone"); hits != "56" || gone != "" {
		t.Errorf("main has %s hits and gone %q, want 56 and no file", hits, gone)
	}
	known.Heads[web], known.Alive = main, func(pando.InstanceID) bool { return false }
	idle := must(r.Born(ctx, "idle", main))
	_ = idle
	for range 20 {
		now = now.Add(time.Minute)
		do(writer.Patch("hits", []byte("1")))
		push(writer, &main, now)
	}
	do(writer.Settle(ctx))
	known.Heads[web] = main
	for range 2 { // the first cuts the history, the second meets the branch behind it
		must(Trim(ctx, m, known, Keep{Commits: 2}, now))
	}
	if left := must(Branches(m, web)); len(left) != 0 {
		t.Errorf("the branches %v of dead instances are left", left)
	}
}

// A push moves main and loses its answer while the instance pulls an older main. Both commits are
// in the branch and in main, and neither contains the other. The host that sent main has cut the
// history between them. Each line counts once: the pushed one, and the one after it.
func TestCrossedHistoriesThatWereCutMergeOnce(t *testing.T) {
	ctx, m, now := t.Context(), newMemory(), t0
	next := func() time.Time { now = now.Add(time.Second); return now }
	r := Open(m, web, typed).Shared(func() bool { return true })
	var main pando.ObjectID
	other := must(r.Born(ctx, "other", main))
	pay := func(b *Branch, line string) {
		do(errors.Join(b.Patch("hits", []byte("1")), b.Patch("log", []byte(line))))
		must(b.Commit(ctx, "", next()))
	}
	pay(other, "the first")
	push(other, &main, next())
	b := must(r.Born(ctx, "b", main))
	pay(b, "pushed, the answer lost")
	var cut pando.ObjectID
	for n := range 6 {
		pay(other, fmt.Sprint("another ", n))
		push(other, &main, next())
		if n == 3 {
			cut = main
		}
	}
	pulled := main
	moved, _, err := b.Merge(ctx, main, next())
	do(err)
	must(b.Pull(ctx, pulled, next()))
	pay(b, "not pushed yet")
	main = moved
	do(other.Settle(ctx))
	other = must(r.Born(ctx, "third", main))
	pay(other, "the last of others")
	push(other, &main, next())
	do(m.Update(ctx, pando.ObjectsUpdate{
		Refs: map[string]pando.ObjectID{refOf(web, edgeRef, cut.String()): cut}}))
	push(must(r.Born(ctx, "b", main)), &main, next())
	if hits, log := text(r, main, "hits"), text(r, main, "log"); hits != "10" ||
		strings.Count(log, "\n") != 10 || strings.Count(log, "the answer lost") != 1 {
		t.Errorf("main has %s hits and the log\n%swant 10 lines, each once", hits, log)
	}
}
