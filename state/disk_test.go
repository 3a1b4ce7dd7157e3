package state

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// disk is a store on a bad disk: a write fails before its effect or after it, and a read of a ref
// may fail.
type disk struct {
	*memory
	t     *rapid.T
	whole bool // no call fails
}

var errDisk = errors.New("input/output error")

func (d *disk) fails(of string) bool {
	return !d.whole && rapid.IntRange(0, 4).Draw(d.t, of) == 0
}

func (d *disk) Update(ctx context.Context, u pando.ObjectsUpdate) error {
	if d.fails("before") {
		return errDisk
	}
	err := d.memory.Update(ctx, u)
	if err == nil && d.fails("after") {
		return errDisk
	}
	return err
}

func (d *disk) Ref(name string) (pando.ObjectID, error) {
	if d.fails("read") {
		return pando.ObjectID{}, errDisk
	}
	return d.memory.Ref(name)
}

// A disk reports errors for writes that happened. An acknowledged commit is in main exactly once, a
// refused one not at all, and the branch goes its way once the disk is whole.
func TestABadDiskLosesNothingAndWritesNothingTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &disk{memory: newMemory(), t: t}
		r := Open(d, web, typed)
		var main pando.ObjectID
		var b *Branch
		var err error
		for b == nil {
			if b, err = r.Born(t.Context(), "web-1", main); err != nil && !errors.Is(err, errDisk) {
				t.Fatal(err)
			}
		}
		acked, now := map[string]bool{}, time.Unix(1e9, 0)
		for n := range rapid.IntRange(1, 12).Draw(t, "steps") {
			now = now.Add(time.Second)
			line := fmt.Sprint("line ", n)
			if rapid.IntRange(0, 3).Draw(t, "step") > 0 {
				_, err = b.CommitChange(t.Context(), pando.StateChange{
					Patch: map[string]string{"log": line, "hits": "1"},
				}, now)
				acked[line] = err == nil
			} else {
				err = pushed(t, b, &main, now)
			}
			if err != nil && !errors.Is(err, errDisk) {
				t.Fatalf("step %d: %v", n, err)
			}
		}
		d.whole = true
		if err := pushed(t, b, &main, now); err != nil {
			t.Fatalf("on a whole disk: %v", err)
		}
		sum := 0
		for line, want := range acked {
			n := strings.Count(text(r, main, "log"), line+"\n")
			if want && n != 1 || !want && n != 0 {
				t.Fatalf("%q was acknowledged: %v, and is in main %d times", line, want, n)
			}
			sum += n
		}
		if got := text(r, main, "hits"); got != strconv.Itoa(sum) && (got != "" || sum > 0) {
			t.Fatalf("the counter is %q, want %d", got, sum)
		}
		if err := b.Settle(t.Context()); err != nil {
			t.Fatalf("note the place of the branch: %v", err)
		}
		if err := b.Discard(t.Context()); err != nil {
			t.Fatalf("drop the branch: %v", err)
		}
	})
}

// pushed merges the branch into *main, as the agent does.
func pushed(t *rapid.T, b *Branch, main *pando.ObjectID, now time.Time) error {
	id, _, err := b.Merge(t.Context(), *main, now)
	if err != nil {
		return err
	}
	*main = id
	return b.Pushed(id)
}
