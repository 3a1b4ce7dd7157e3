package storeguard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// memory is a sighting in memory.
type memory struct {
	pando.Sighting
	saves int
}

func (m *memory) Load(bool) (pando.Sighting, error) { return m.Sighting, nil }
func (m *memory) Save(s pando.Sighting) error       { m.Sighting = s; m.saves++; return nil }

// Tenants share the list of instances without a record. Each tenant has a place in it.
func TestNamesAdriftHaveAShareForEachTenant(t *testing.T) {
	onRig(t, func(r *rig) {
		var all []pando.Instance
		for n := range 2 * pando.AdriftMax {
			all = append(all, pando.Instance{ID: pando.InstanceID(fmt.Sprint("a-", n)),
				Service: pando.ServiceKey{Tenant: "acme", Name: "a"}})
		}
		all = append(all, pando.Instance{ID: "z-1", Service: pando.ServiceKey{Tenant: "bank", Name: "z"}})
		slices.Reverse(all)
		if err := r.Adopted(r.ctx, all); err != nil {
			t.Fatal(err)
		}
		s, err := r.store.Snapshot(r.ctx, pando.KindHost.Under())
		if err != nil || len(s.Records) != 1 {
			t.Fatal(s, err)
		}
		var h pando.Host
		if err := world.Decode(s.Records[0], &h); err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(h.Adrift)
		if len(words) != pando.AdriftMax || !slices.Contains(words, "bank/z/z-1") {
			t.Errorf("%d names, want %d and among them bank/z/z-1", len(words), pando.AdriftMax)
		}
		if !r.Drifts("a-0") || !r.Drifts("z-1") {
			t.Error("an instance beyond the names is forgotten")
		}
	})
}

type rig struct {
	*testing.T
	store  *sim.Registry
	memory *memory
	*Guard
	ctx  context.Context
	host pando.Fence
}

func encode(c pando.Cluster) []byte {
	b, err := world.Encode(c)
	if err != nil {
		panic(err)
	}
	return b
}

// onRig runs a test on a guard that has joined a store of cluster "a", generation 1.
func onRig(t *testing.T, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &rig{T: t, store: sim.NewRegistry(1, 0), memory: &memory{}, ctx: ctx}
		r.put(pando.Cluster{ID: "a", Generation: 1})
		r.renew()
		test(r)
		cancel()
		time.Sleep(time.Minute)
	})
}

// renew begins a new process on the same host.
func (r *rig) renew() {
	r.Guard = New(r.store, r.memory, sim.Clock{}, slog.New(slog.DiscardHandler))
	r.Recall(true)
	r.join()
}

func (r *rig) join() {
	r.Helper()
	f, _, err := r.Join(r.ctx, pando.Host{Name: "h1"}, time.Second)
	if err != nil {
		r.Fatal(err)
	}
	r.host = f
}

func (r *rig) put(v ...pando.Stored) {
	r.Helper()
	if _, err := r.store.Commit(r.ctx, pando.Txn{Put: v}); err != nil {
		r.Fatal(err)
	}
}

// reads reports whether the guard passes the store on.
func (r *rig) reads(want bool) {
	r.Helper()
	_, err := r.Snapshot(r.ctx, pando.Root)
	if (err == nil) != want || !want && !errors.Is(err, pando.ErrFrozen) ||
		(r.Frozen() == nil) != want {
		r.Errorf("read: %v, frozen: %v, want it readable: %v", err, r.Frozen(), want)
	}
	_, err = r.Commit(r.ctx, pando.Txn{Put: []pando.Stored{pando.Service{
		ServiceKey: pando.DefaultService("x")}}})
	if !want && !errors.Is(err, pando.ErrFrozen) || want && err != nil {
		r.Errorf("write: %v, want it writable: %v", err, want)
	}
}

func (r *rig) shown() string {
	r.Helper()
	s, err := r.store.Snapshot(r.ctx, pando.HostKey("h1"))
	if err != nil || len(s.Records) != 1 {
		return "no record"
	}
	v, err := world.DecodeAny(s.Records[0])
	if err != nil {
		r.Fatal(err)
	}
	return v.(pando.Host).Frozen
}

func TestAGuardRefusesEveryWrongStore(t *testing.T) {
	for what, wrong := range map[string]func(r *rig, older sim.Image){
		"an older copy": func(r *rig, older sim.Image) { r.store.Replace(older) },
		"an empty one":  func(r *rig, _ sim.Image) { r.store.Replace(sim.Image{}) },
		"a new cluster": func(r *rig, _ sim.Image) {
			r.store.Replace(sim.Image{})
			r.put(pando.Cluster{ID: "b", Generation: 1})
		},
		"another cluster, far ahead": func(r *rig, _ sim.Image) {
			r.store.Replace(sim.Image{})
			r.put(pando.Cluster{ID: "b", Generation: 9})
			for range 100 {
				r.put(pando.Service{ServiceKey: pando.DefaultService("theirs")})
			}
		},
		"a damaged record of itself": func(r *rig, _ sim.Image) {
			r.store.Replace(sim.Image{})
			r.store.Overwrite(pando.ClusterKey, []byte("garbage"))
		},
		"a record of a newer build": func(r *rig, _ sim.Image) {
			r.store.Replace(sim.Image{})
			r.store.Overwrite(pando.ClusterKey, []byte(`{"layout":99,"value":{}}`))
		},
	} {
		for _, again := range []bool{false, true} {
			t.Run(what, func(t *testing.T) {
				onRig(t, func(r *rig) {
					older := r.store.Copy()
					for range 5 {
						r.put(pando.Service{ServiceKey: pando.DefaultService("web")})
					}
					r.reads(true)
					good := r.store.Copy()
					time.Sleep(time.Minute)
					r.reads(true) // and saves
					wrong(r, older)
					if again {
						r.renew()
					} else {
						r.reads(false)
						r.join()
					}
					r.reads(false)
					if r.shown() == "" || r.shown() == "no record" {
						t.Errorf("the host's record shows %q", r.shown())
					}
					r.store.Replace(good)
					r.reads(true)
					r.join()
					r.reads(true)
					if r.shown() != "" {
						t.Errorf("the host's record shows %q after the freeze", r.shown())
					}
				})
			})
		}
	}
}

// A new cluster's server may write its record after the host has joined. A later snapshot has it.
func TestAGuardSeesARecordThatIsWrittenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, store: sim.NewRegistry(1, 0), memory: &memory{}, ctx: t.Context()}
		r.renew()
		r.put(pando.Cluster{ID: "a", Generation: 1})
		r.reads(true)
		r.store.Replace(sim.Image{})
		r.reads(false)
	})
}

func TestAGuardAcceptsARestoredStoreOnce(t *testing.T) {
	onRig(t, func(r *rig) {
		backup := r.store.Copy()
		for range 50 {
			r.put(pando.Service{ServiceKey: pando.DefaultService("web")})
		}
		r.reads(true)
		r.store.Replace(sim.Image{})
		r.reads(false)
		r.store.Replace(backup.Restored(encode, pando.Cluster{ID: "a", Generation: 2}))
		r.reads(true)
		if r.Generation() != 2 || r.memory.Generation != 2 {
			t.Errorf("generation %d, remembered %d", r.Generation(), r.memory.Generation)
		}
		r.store.Replace(backup)
		r.reads(false) // the first generation is over
		r.renew()
		r.reads(false)
	})
}

// collect reads a watch to its end.
func collect(c <-chan pando.Batch) (got []pando.Batch) {
	for b := range c {
		got = append(got, b)
	}
	return got
}

func TestAWatchPassesNothingOfAnotherStore(t *testing.T) {
	web := pando.Service{ServiceKey: pando.DefaultService("web")}
	for what, replaced := range map[string]func(r *rig, older sim.Image){
		"one that is far ahead": func(r *rig, _ sim.Image) {
			r.store.Replace(sim.Image{})
			for range 100 {
				r.put(pando.Service{ServiceKey: pando.DefaultService("theirs")})
			}
		},
		"a silent one": func(r *rig, older sim.Image) { r.store.Replace(older) },
		"an empty one": func(r *rig, _ sim.Image) { r.store.Replace(sim.Image{}) },
	} {
		t.Run(what, func(t *testing.T) {
			onRig(t, func(r *rig) {
				older := r.store.Copy()
				for range 9 {
					r.put(web)
				}
				s, err := r.Snapshot(r.ctx, pando.Root)
				if err != nil {
					t.Fatal(err)
				}
				c := r.Watch(r.ctx, pando.Root, s.Revision)
				r.put(web)
				if b := <-c; b.Err != nil || len(b.Changes) != 1 {
					t.Fatalf("the watch brought %+v", b)
				}
				synctest.Wait()
				replaced(r, older)
				got := collect(c)
				if len(got) != 1 || !errors.Is(got[0].Err, pando.ErrCompacted) || got[0].Changes != nil {
					t.Errorf("the watch brought %+v", got)
				}
				r.reads(false)
			})
		})
	}
}

// A quiet store of its own ends no watch.
func TestASilentWatchGoesOn(t *testing.T) {
	onRig(t, func(r *rig) {
		s, err := r.Snapshot(r.ctx, pando.Root)
		if err != nil {
			t.Fatal(err)
		}
		c := r.Watch(r.ctx, pando.Root, s.Revision)
		time.Sleep(time.Hour)
		r.put(pando.Service{ServiceKey: pando.DefaultService("web")})
		if b := <-c; b.Err != nil || len(b.Changes) != 1 {
			t.Errorf("the watch brought %+v", b)
		}
	})
}

// Commits and reads that overlap never make a host take its own store for an older one.
func TestConcurrentCallsFreezeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := sim.NewRegistry(3, 20*time.Millisecond)
		a := New(store, &memory{}, sim.Clock{}, slog.New(slog.DiscardHandler))
		if _, err := store.Commit(ctx, pando.Txn{Put: []pando.Stored{
			pando.Cluster{ID: "a", Generation: 1}}}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = world.Follow(ctx, sim.Clock{}, a, pando.Root, func(pando.Batch, bool) {})
		}()
		ended := make(chan struct{})
		for n := range 8 {
			go func() {
				defer func() { ended <- struct{}{} }()
				dice := rand.New(rand.NewPCG(uint64(n), 1))
				for range 200 {
					var err error
					if dice.IntN(2) == 0 {
						_, err = a.Snapshot(ctx, pando.Root)
					} else {
						_, err = a.Commit(ctx, pando.Txn{Put: []pando.Stored{
							pando.Service{ServiceKey: pando.DefaultService("web")}}})
					}
					if err != nil {
						t.Errorf("%v", err)
					}
				}
			}()
		}
		for range 8 {
			<-ended
		}
		if err := a.Frozen(); err != nil {
			t.Error(err)
		}
		cancel()
		synctest.Wait()
	})
}

// A sighting is saved seldom, and at once in a new generation.
func TestASightingIsSavedSeldom(t *testing.T) {
	onRig(t, func(r *rig) {
		before := r.memory.saves
		for range 1000 {
			r.put(pando.Service{ServiceKey: pando.DefaultService("web")})
			r.reads(true)
			time.Sleep(time.Millisecond)
		}
		if n := r.memory.saves - before; n > 2 {
			t.Errorf("%d saves in a second", n)
		}
	})
}
