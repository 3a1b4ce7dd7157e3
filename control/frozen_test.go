package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

var newerRecord = []byte(`{"layout":99,"value":{}}`)

// A record that control cannot read freezes its service and no other. It is never overwritten.
func TestControlLeavesAFrozenServiceAlone(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		by := pando.Asker{Kind: pando.AskerOperator}
		key := pando.Instance{ID: "web-9", Service: web, Host: "h1"}.Key()
		l.registry.Overwrite(key, newerRecord)
		time.Sleep(time.Minute)
		synctest.Wait()
		st, err := l.Service(t.Context(), web)
		if err != nil || st.Problem == nil || st.Problem.Kind != pando.DecidedFrozen ||
			!strings.Contains(st.Reason, "web-9") {
			t.Errorf("the status is %q, problem %+v, %v", st.Reason, st.Problem, err)
		}
		before := len(l.registry.History())
		if _, err := l.Pin(t.Context(), web, 3, 0, by); !errors.Is(err, pando.ErrFrozen) {
			t.Errorf("pin: %v", err)
		}
		if err := l.Remove(t.Context(), web, true, by); !errors.Is(err, pando.ErrFrozen) {
			t.Errorf("remove: %v", err)
		}
		time.Sleep(time.Minute)
		for _, b := range l.registry.History()[before:] {
			for _, r := range b.Changes {
				if s, ok := r.Key.Service(); ok && s == web {
					t.Errorf("%s was written at %d", r.Key, r.Modified)
				}
			}
		}
		spec := pando.Spec{Name: "other", Command: []string{"true"}}
		if _, err := l.Deploy(t.Context(), spec, by); err != nil {
			t.Errorf("another service cannot be deployed: %v", err)
		}
	})
}

// A service whose own record cannot be read is listed, and its address is given to no other.
func TestAFrozenServiceIsListedAndKeepsItsAddress(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		frozen := pando.DefaultService("frozen")
		l.registry.Overwrite(frozen.Key(), newerRecord)
		time.Sleep(time.Second)
		all, err := l.Services(t.Context())
		if err != nil || len(all) != 2 || all[1].ServiceKey != frozen ||
			all[1].Problem.Kind != pando.DecidedFrozen {
			t.Errorf("listed: %+v, %v", all, err)
		}
		if _, err := l.Commit(t.Context(), "new"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		st, err := l.Service(t.Context(), pando.DefaultService("new"))
		if err != nil || st.VIP4.IsValid() {
			t.Errorf("a new service got %s while an address is unknown (%v)", st.VIP4, err)
		}
	})
}

// Commit writes a service as Deploy does, without waiting for its address.
func (l leadership) Commit(ctx context.Context, name string) (pando.StoreRevision, error) {
	key := pando.DefaultService(pando.ServiceName(name))
	spec := pando.Spec{Name: key.Name, Command: []string{"true"}}.WithDefaults()
	return l.registry.Commit(ctx, pando.Txn{Put: []pando.Stored{
		pando.Service{ServiceKey: key, Target: 1, Latest: 1, Phase: pando.ServiceDeploying},
		pando.Revision{Service: key, Number: 1, Spec: spec},
	}})
}

// A frozen host takes no instance, and services on it are left alone.
func TestAFrozenHostIsLeftAlone(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		by := pando.Asker{Kind: pando.AskerOperator}
		h := pando.Host{Name: "h1", Frozen: "the store is an older copy"}
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{h}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		all, err := l.Hosts(t.Context())
		if err != nil || len(all) != 1 || all[0].State != pando.HostFrozen {
			t.Errorf("hosts: %+v, %v", all, err)
		}
		if _, err := l.Deploy(t.Context(), pando.Spec{Name: "new", Command: []string{"true"}},
			by); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		st, err := l.Service(t.Context(), pando.DefaultService("new"))
		if err != nil || len(st.Instances) != 0 {
			t.Errorf("instances %+v were placed on a frozen host (%v)", st.Instances, err)
		}
		svc := pando.Service{ServiceKey: web, Home: "h1", Current: 1, Target: 1, Latest: 1,
			VIP4: pando.VIPs4.Addr().Next().Next(), Phase: pando.ServiceServing}
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{svc}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if st, err = l.Service(t.Context(), web); err != nil || st.Problem == nil ||
			st.Problem.Kind != pando.DecidedFrozen || !strings.Contains(st.Reason, "older copy") {
			t.Errorf("the status is %q, problem %+v, %v", st.Reason, st.Problem, err)
		}
	})
}

// A store gets one identity, for its life.
func TestAStoreIsBaptisedOnce(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		time.Sleep(time.Second)
		read := func() pando.Cluster {
			l.mirror.Mu.Lock()
			defer l.mirror.Mu.Unlock()
			return l.mirror.World.Cluster.V
		}
		first := read()
		if first.ID == "" || first.Generation != 1 {
			t.Errorf("the store is %+v", first)
		}
		s, err := l.registry.Snapshot(t.Context(), pando.LeaderKey("control"))
		if err != nil || len(s.Records) != 1 {
			t.Fatal(s, err)
		}
		l.registry.Depose(pando.Fence{Key: s.Records[0].Key, Created: s.Records[0].Created})
		time.Sleep(10 * time.Second)
		if now := read(); now != first {
			t.Errorf("after another election the store is %+v, was %+v", now, first)
		}
	})
}
