package etcd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// pair is the real store and the registry of simulations with the same history.
type pair struct {
	t    *rapid.T
	real pando.Registry
	sim  pando.Registry
	// at maps revisions of the real store to those of the simulation: each store counts its own.
	at     map[pando.StoreRevision]pando.StoreRevision
	prefix string
	newest map[pando.Key]pando.StoreRevision // of the real store
}

var sentinels = []error{
	pando.ErrInvalid, pando.ErrConflict, pando.ErrFenced, pando.ErrTooLarge, pando.ErrExists,
	pando.ErrNotFound,
	pando.ErrUnavailable, pando.ErrStoreFull,
}

// kind returns the sentinel of an error.
func kind(err error) error {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return s
		}
	}
	return err
}

// commit commits a transaction in both and compares the results.
func (p *pair) commit(txn pando.Txn) {
	other := txn
	other.If = nil
	for _, c := range txn.If {
		other.If = append(other.If, pando.Condition{Key: c.Key, Modified: p.twin(c.Modified)})
	}
	if txn.Fence.Key != "" {
		other.Fence.Created = p.twin(txn.Fence.Created)
	}
	at, err := p.real.Commit(p.t.Context(), txn)
	twin, twinErr := p.sim.Commit(p.t.Context(), other)
	if kind(err) != kind(twinErr) {
		p.t.Fatalf("%+v: the store returns %v, the simulation %v", txn, err, twinErr)
	}
	if err != nil {
		return
	}
	p.at[at] = twin
	for _, v := range txn.Put {
		p.newest[v.Key()] = at
	}
	for _, k := range txn.Delete {
		delete(p.newest, k)
	}
}

// twin returns the revision of the simulation for one of the real store. An unknown revision has
// none.
func (p *pair) twin(at pando.StoreRevision) pando.StoreRevision {
	if at == 0 {
		return 0
	}
	if twin, ok := p.at[at]; ok {
		return twin
	}
	return -1
}

// compare compares the records of both.
func (p *pair) compare() {
	prefix := pando.Root + pando.Key("service/"+p.prefix)
	a, err := p.real.Snapshot(p.t.Context(), prefix)
	if err != nil {
		p.t.Fatal(err)
	}
	b, err := p.sim.Snapshot(p.t.Context(), prefix)
	if err != nil {
		p.t.Fatal(err)
	}
	if !slices.IsSortedFunc(a.Records,
		func(x, y pando.Record) int { return strings.Compare(string(x.Key), string(y.Key)) }) {
		p.t.Fatalf("a snapshot is not in order: %v", a.Records)
	}
	if len(a.Records) != len(b.Records) {
		p.t.Fatalf("the store has %d records, the simulation %d", len(a.Records), len(b.Records))
	}
	for n, r := range a.Records {
		s := b.Records[n]
		if r.Key != s.Key || string(r.Value) != string(s.Value) ||
			p.twin(r.Created) != s.Created || p.twin(r.Modified) != s.Modified {
			p.t.Fatalf("record %d: the store has %+v, the simulation %+v", n, r, s)
		}
	}
}

// draw returns a transaction over a few keys, with conditions that hold or not.
func (p *pair) draw(fence pando.Fence) (txn pando.Txn) {
	names := rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 0, 3, rapid.ID).Draw(p.t, "names")
	for _, n := range names {
		s := pando.Service{ServiceKey: pando.ServiceKey{Tenant: pando.Tenant(p.prefix),
			Name: pando.ServiceName(fmt.Sprint("s", n))}}
		switch rapid.IntRange(0, 3).Draw(p.t, "write") {
		case 0:
			txn.Delete = append(txn.Delete, s.Key())
		default:
			s.Current = rapid.IntRange(0, 9).Draw(p.t, "value")
			txn.Put = append(txn.Put, s)
		}
		switch rapid.IntRange(0, 3).Draw(p.t, "condition") {
		case 0:
			txn.If = append(txn.If, pando.Condition{Key: s.Key()})
		case 1:
			txn.If = append(txn.If, pando.Condition{Key: s.Key(), Modified: p.newest[s.Key()]})
		case 2: // a revision of another write
			if all := slices.Sorted(maps.Keys(p.at)); len(all) > 0 {
				at := rapid.SampledFrom(all).Draw(p.t, "stale")
				txn.If = append(txn.If, pando.Condition{Key: s.Key(), Modified: at})
			}
		}
	}
	if fence.Key != "" && rapid.Bool().Draw(p.t, "fenced") {
		txn.Fence = fence
	}
	return txn
}

// The registry of simulations accepts and refuses the same transactions as the real store, with the
// same errors, and has the same records after them. The results of simulations hold for the store.
func TestTheSimulationIsAsTheStore(t *testing.T) {
	s, _ := start(t, tempDir(t))
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		p := &pair{
			t: rt, real: s.Registry(), sim: sim.NewRegistry(1, 0), prefix: fmt.Sprint("t", runs),
			at: map[pando.StoreRevision]pando.StoreRevision{}, newest: map[pando.Key]pando.StoreRevision{},
		}
		role := fmt.Sprint("role", runs)
		fence, _, err := p.real.Lead(rt.Context(), role, "a")
		if err != nil {
			rt.Fatal(err)
		}
		twin, _, err := p.sim.Lead(rt.Context(), role, "a")
		if err != nil {
			rt.Fatal(err)
		}
		p.at[fence.Created] = twin.Created
		for range rapid.IntRange(1, 15).Draw(rt, "transactions") {
			if rapid.IntRange(0, 9).Draw(rt, "depose") == 0 { // another leader takes over
				p.commit(pando.Txn{Delete: []pando.Key{fence.Key}})
			}
			p.commit(p.draw(fence))
			p.compare()
		}
	})
}

// A watch of each sends the same commits, with the same changes in the same order.
func TestWatchesOfBothSendTheSame(t *testing.T) {
	s, _ := start(t, tempDir(t))
	twin := sim.NewRegistry(1, 0)
	a := s.Registry().Watch(t.Context(), pando.Root+"service/", 0)
	b := twin.Watch(t.Context(), pando.Root+"service/", 0)
	web, api := service("web"), service("api")
	for n, txn := range []pando.Txn{
		{Put: []pando.Stored{web, api}},
		{Put: []pando.Stored{pando.Decision{ID: "1", Service: web.ServiceKey}}}, // outside of the prefix
		{Delete: []pando.Key{api.Key()}},
		{Put: []pando.Stored{api}, Delete: []pando.Key{web.Key()}},
	} {
		for _, r := range []pando.Registry{s.Registry(), twin} {
			if _, err := r.Commit(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
		}
		if n == 1 {
			continue
		}
		x, y := changes(t, a), changes(t, b)
		if !slices.Equal(x, y) {
			t.Errorf("commit %d: the store sends %q, the simulation %q", n, x, y)
		}
	}
}

// changes returns the keys of the next batch, marked if they were deleted.
func changes(t *testing.T, w <-chan pando.Batch) (out []string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case batch := <-w:
			if batch.Err != nil {
				t.Fatal(batch.Err)
			}
			for _, r := range batch.Changes {
				out = append(out, fmt.Sprintf("%s deleted %v", r.Key, r.Value == nil))
			}
			if len(out) > 0 {
				slices.Sort(out)
				return out
			}
		case <-deadline:
			t.Fatal("no batch")
		}
	}
}
