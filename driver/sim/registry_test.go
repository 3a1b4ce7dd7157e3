package sim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

func service(name string) pando.Service {
	return pando.Service{ServiceKey: pando.DefaultService(pando.ServiceName(name))}
}

func TestRegistryHoldsItsRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		r := NewRegistry(1, 10*time.Millisecond)
		w := r.Watch(ctx, pando.Root+"service/", 0)

		lead, resign := context.WithCancel(ctx)
		f, lost, err := r.Lead(lead, "control", "a")
		if err != nil {
			t.Fatal(err)
		}
		at, err := r.Commit(ctx, pando.Txn{Fence: f, Put: []pando.Stored{service("web")}})
		if err != nil {
			t.Fatal(err)
		}
		if b := <-w; b.Revision != at || len(b.Changes) != 1 {
			t.Errorf("watched %+v; want revision %d", b, at)
		}
		if _, err := r.Commit(ctx, pando.Txn{If: []pando.Condition{{Key: service("web").Key()}},
			Put: []pando.Stored{service("web")}}); !errors.Is(err, pando.ErrConflict) {
			t.Errorf("a stale condition: %v", err)
		}
		resign()
		if _, _, err := r.Lead(ctx, "control", "b"); err != nil {
			t.Fatal(err)
		}
		<-lost
		if _, err := r.Commit(ctx,
			pando.Txn{Fence: f, Put: []pando.Stored{service("web")}}); !errors.Is(err, pando.ErrFenced) {
			t.Errorf("a deposed leader: %v", err)
		}
		r.Fail(pando.ErrUnavailable)
		if b := <-w; !errors.Is(b.Err, pando.ErrUnavailable) {
			t.Errorf("watched %+v; want ErrUnavailable", b)
		}
		if _, err := r.Snapshot(ctx, pando.Root); !errors.Is(err, pando.ErrUnavailable) {
			t.Errorf("a read out of reach: %v", err)
		}
	})
}

func TestHostIsGoneAfterItsLeaseUnlessItCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		r := NewRegistry(1, 0)
		h := pando.Host{Name: "h1"}
		there := func() bool {
			s, err := r.Snapshot(ctx, h.Key())
			return err == nil && len(s.Records) == 1
		}
		first, crash := context.WithCancel(ctx)
		f, _, err := r.Join(first, h, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		crash()
		second, crashAgain := context.WithCancel(ctx)
		if _, _, err := r.Join(second, h, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		if !there() {
			t.Error("the lease of a former agent took the record of its successor")
		}
		if _, err := r.Commit(ctx,
			pando.Txn{Fence: f, Put: []pando.Stored{h}}); !errors.Is(err, pando.ErrFenced) {
			t.Errorf("the former agent wrote: %v", err)
		}
		crashAgain()
		time.Sleep(6 * time.Second)
		if there() {
			t.Error("a dead host is still there")
		}
	})
}

func TestObjectsRefuseAStaleRef(t *testing.T) {
	o := NewObjects()
	id := pando.ObjectID{1}
	move := pando.ObjectsUpdate{
		Refs: map[string]pando.ObjectID{"a/b/main": id}, If: map[string]pando.ObjectID{"a/b/main": {}},
	}
	if err := o.Update(t.Context(), move); err != nil {
		t.Fatal(err)
	}
	if err := o.Update(t.Context(), move); !errors.Is(err, pando.ErrConflict) {
		t.Errorf("moved twice from nothing: %v", err)
	}
}
