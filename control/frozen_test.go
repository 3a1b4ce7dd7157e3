package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
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

// Decide panics on no world that the store can hold: phases, states and references are drawn at
// random.
func TestDecidePanicsOnNoWorld(t *testing.T) {
	phases := []pando.Phase{pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm, pando.PhaseReady,
		pando.PhaseInRotation, pando.PhaseDraining, pando.PhaseDrained, pando.PhaseFailed,
		pando.PhaseMerged}
	states := []pando.IntentState{pando.IntentAsked, pando.IntentGranted, pando.IntentPlaced,
		pando.IntentStarting, pando.IntentReady, pando.IntentInRotation, pando.IntentDraining,
		pando.IntentMerged, pando.IntentDead, pando.IntentFailed, pando.IntentRefused,
		pando.IntentCoalesced, ""}
	verbs := []pando.Verb{pando.VerbReplicate, pando.VerbHalt, pando.VerbDie}
	for seed := range uint64(3000) {
		d := rand.New(rand.NewPCG(seed, 7))
		w, now := world.New(), time.Unix(1e9, 0)
		name := func(n int) pando.InstanceID { return pando.InstanceID(fmt.Sprint("web-", d.IntN(n))) }
		host := func() pando.HostName { return pando.HostName(fmt.Sprint("h", d.IntN(4))) }
		ago := func() time.Time { return now.Add(-time.Duration(d.IntN(90)) * time.Second) }
		t1 := pando.Txn{Put: []pando.Stored{pando.Service{ServiceKey: web, Current: d.IntN(3),
			Target: d.IntN(3), Latest: 2, Removing: d.IntN(5) == 0, Rolling: d.IntN(4), Home: host(),
			Phase: pando.ServiceServing}}}
		for n := 1; n < 3; n++ {
			spec := pando.Spec{Name: "web", Command: []string{"web"},
				Scale: pando.Scale{Min: d.IntN(3), Max: 1 + d.IntN(4), Warm: d.IntN(2)}}
			t1.Put = append(t1.Put,
				pando.Revision{Service: web, Number: n, Spec: spec.WithDefaults()})
		}
		for range d.IntN(3) {
			t1.Put = append(t1.Put, pando.Host{Name: host(), CPUs: 2, Leaving: d.IntN(4) == 0})
		}
		for range d.IntN(7) {
			t1.Put = append(t1.Put, pando.Instance{ID: name(9), Service: web, Host: host(),
				Revision: d.IntN(4), Weight: 100, Warm: d.IntN(5) == 0, Phase: phases[d.IntN(len(phases))],
				Born: ago(), Since: ago()})
		}
		for n := range d.IntN(6) {
			t1.Put = append(t1.Put, pando.Intent{ID: pando.IntentID(fmt.Sprint(n)), Service: web,
				Verb: verbs[d.IntN(3)], Host: host(), Instance: name(9), State: states[d.IntN(len(states))],
				By:      pando.Asker{Kind: pando.AskerInstance, Name: string(name(9))},
				History: []pando.Transition{{At: ago()}}})
		}
		w.Committed(t1, 1)
		for step := range 4 {
			func() {
				defer func() {
					if why := recover(); why != nil {
						t.Fatalf("seed %d, step %d: %v", seed, step, why)
					}
				}()
				txn, _ := decide.Decide(w, web, now, &sim.IDs{})
				w.Committed(txn, pando.StoreRevision(step+2))
			}()
			now = now.Add(time.Duration(d.IntN(20)) * time.Second)
		}
	}
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
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.world.Cluster.V
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
