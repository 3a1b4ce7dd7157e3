//go:build bench

// Package merge measures the cost of merging an instance's branch durably into the state of its
// service. The peer is one commit of the same store in the same file system.
package merge

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"pando.run/pando"
	"pando.run/pando/driver/store/bolt"
	"pando.run/pando/state"
)

const (
	rounds   = 200
	keys     = 1000
	changed  = 200 // keys changed by the branch
	conflict = 50  // of those, keys that main also changed
)

// The series of the results.
const (
	commitSeries = "one bbolt commit"
	mergeSeries  = "merge"
	pushSeries   = "merge + the branch begins anew"
)

var (
	web   = pando.DefaultService("web")
	typed = map[string]pando.StateType{"*": pando.StateOpaque}
)

func key(n int) string { return fmt.Sprintf("user-%04d", n) }

func value(round, n int, who string) []byte {
	return fmt.Appendf(nil, "%s wrote %d in round %d: %090d", who, n, round, n)
}

func TestMerge(t *testing.T) {
	dir := t.TempDir()
	objects, err := bolt.Open(filepath.Join(dir, "state.db"))
	ok(t, err)
	defer objects.Close()
	peer, err := bbolt.Open(filepath.Join(dir, "peer.db"), 0o600,
		&bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	ok(t, err)
	defer peer.Close()
	repo := state.Open(objects, web, typed)
	ctx := t.Context()
	var main pando.ObjectID
	seed, err := repo.Born(ctx, "seed", main)
	ok(t, err)
	for n := range keys {
		ok(t, seed.Put(key(n), value(0, n, "seed")))
	}
	main = push(t, ctx, seed, main, 0)
	samples := map[string][]float64{}
	for round := range rounds {
		samples[commitSeries] = append(samples[commitSeries],
			millis(func() { ok(t, commitOne(peer, round)) }))
		branch, err := repo.Born(ctx, pando.InstanceID(fmt.Sprintf("web-%d", round)), main)
		ok(t, err)
		for n := range conflict {
			ok(t, seed.Put(key(n), value(round, n, "main")))
		}
		main = push(t, ctx, seed, main, round)
		for n := range changed {
			ok(t, branch.Put(key(n), value(round, n, "branch")))
		}
		_, err = branch.Commit(ctx, "changed", at(round))
		ok(t, err)
		var to pando.ObjectID
		var result pando.MergeResult
		merge := millis(func() { to, result, err = branch.Merge(ctx, main, at(round)) })
		ok(t, err)
		if len(result.Conflicts) != conflict || result.Taken != changed-conflict {
			t.Fatalf("the merge took %d and had %d conflicts", result.Taken, len(result.Conflicts))
		}
		main = to
		note := millis(func() { ok(t, branch.Pushed(main)) })
		ok(t, branch.Discard(ctx))
		samples[mergeSeries] = append(samples[mergeSeries], merge)
		samples[pushSeries] = append(samples[pushSeries], merge+note)
		for n := range conflict { // the conflict copies are deleted, so that every round is the same
			ok(t, seed.Delete(key(n)+".conflict-web-"+fmt.Sprint(round)))
		}
		_, err = seed.Pull(ctx, main, at(round))
		ok(t, err)
	}
	publish(t, samples)
}

func at(round int) time.Time { return time.Unix(1_800_000_000+int64(round), 0).UTC() }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func push(
	t *testing.T, ctx context.Context, b *state.Branch, main pando.ObjectID, round int,
) pando.ObjectID {
	t.Helper()
	_, err := b.Commit(ctx, "push", at(round))
	ok(t, err)
	to, _, err := b.Merge(ctx, main, at(round))
	ok(t, err)
	ok(t, b.Pushed(to))
	return to
}

func millis(f func()) float64 {
	begin := time.Now()
	f()
	return float64(time.Since(begin)) / float64(time.Millisecond)
}

// commitOne is the peer: one key of 100 bytes, durable.
func commitOne(db *bbolt.DB, round int) error {
	return db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte("keys"))
		if err != nil {
			return err
		}
		return b.Put([]byte(key(round)), value(round, round, "peer"))
	})
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func publish(t *testing.T, samples map[string][]float64) {
	t.Helper()
	f, err := os.Create("results.csv")
	ok(t, err)
	defer f.Close()
	out := csv.NewWriter(f)
	ok(t, out.Write([]string{"round", "series", "value"}))
	for _, series := range []string{commitSeries, mergeSeries, pushSeries} {
		for round, v := range samples[series] {
			ok(t, out.Write([]string{fmt.Sprint(round), series, fmt.Sprintf("%.3f", v)}))
		}
	}
	out.Flush()
	ok(t, out.Error())
	one, merge, whole := median(samples[commitSeries]), median(samples[mergeSeries]),
		median(samples[pushSeries])
	verdict := map[bool]string{true: "held", false: "missed"}
	rows := []string{
		fmt.Sprintf(
			"merge of 1,000 keys (200 changed, 50 in conflict), durable, against one bbolt commit of the "+
				"same run | ≤ 3 × (≈ 5 ms) | | %.2f × (%.1f ms against %.1f ms, medians of %d) | %s",
			merge/one, merge, one, rounds, verdict[merge <= 3*one]),
		fmt.Sprintf("the same until the branch begins anew from main; its next write carries the note "+
			"of that | | | %.2f × (%.1f ms) | stated", whole/one, whole),
	}
	cmd := exec.Command("../../publish", "service/merge", "--title",
		"Merging a branch of a service's state", "--unit", "ms", "--row", rows[0], "--row", rows[1])
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, text)
	}
	for _, r := range rows {
		t.Log(r)
	}
}
