package fault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// counted makes ids of a test.
type counted struct{ n atomic.Int64 }

func (c *counted) Sequential(time.Time) string { return fmt.Sprintf("id-%06d", c.n.Add(1)) }

func (c *counted) Instance(s pando.ServiceName) pando.InstanceID {
	return pando.InstanceID(fmt.Sprintf("%s-%d", s, 1000+c.n.Add(1)))
}

// decides runs the real control over a store until the test ends.
func decides(t *testing.T, s *etcd.Server) {
	t.Helper()
	peers := peer.New(peer.Reach{Own: "c", Clock: clock.Clock{}})
	ctl := control.New(control.Config{
		Registry: s.Registry(), Peers: peers, Clock: clock.Clock{}, IDs: &counted{},
		Log: slog.New(slog.DiscardHandler), Name: "c",
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- ctl.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		peers.Close()
	})
	s.Decide(ctl)
}

// serves writes a service on h2 with one instance in rotation, as control and the agent do.
func serves(t *testing.T, s *etcd.Server) {
	t.Helper()
	spec := pando.Spec{Name: "web", Command: []string{"web"},
		Scale: pando.Scale{Min: 1, Max: 20}}.WithDefaults()
	vip4, vip6 := pando.VIPs4.Addr().Next().Next(), pando.VIPs6.Addr().Next().Next()
	write(t, s,
		pando.Service{ServiceKey: web, VIP4: vip4, VIP6: vip6, Home: "h2", Current: 1, Target: 1,
			Latest: 1, Phase: pando.ServiceServing},
		pando.Revision{Service: web, Number: 1, Spec: spec, State: pando.RevisionCurrent},
		pando.Instance{ID: "web-1", Service: web, Host: "h2", Role: pando.RoleReplica, Revision: 1,
			Phase: pando.PhaseInRotation, Weight: 100, Born: time.Now(), Since: time.Now()})
}

func copies(id pando.IntentID, by pando.InstanceID) pando.Intent {
	return pando.Intent{
		ID: id, Service: web, Verb: pando.VerbReplicate, Host: "h2",
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(by)},
	}.Become(pando.IntentAsked, time.Now(), "load")
}

// A member's ask goes to control over the member's connection to the store. One commit has the ask,
// its answer and its placement.
func TestAnAskOfAnotherHostIsOneCommit(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	r, f := enter(t, at, member(t, a, "h2"))
	serves(t, s)
	ask := copies("i9", "web-1")
	if _, err := r.Ask(t.Context(), at, f, ask, func() {}); !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("a server without a control answered: %v", err)
	}
	decides(t, s)
	records := answered(t, r, at, f, ask)
	w := world.New()
	if err := w.Apply(records, 0); err != nil {
		t.Fatal(err)
	}
	i := w.Intents["i9"]
	o := w.Instances[i.V.Instance]
	if i.V.State != pando.IntentPlaced || o.V.Host != "h2" || o.Modified != i.Modified {
		t.Errorf("the ask became %+v, with %+v", i, o)
	}
	stored := recordAt(t, s, ask.Key())
	if stored.Created != stored.Modified || stored.Modified != i.Modified {
		t.Errorf("the ask was written at %d and answered at %d", stored.Created, stored.Modified)
	}
	// The agent asks again after a lost answer, by either path.
	if again, err := r.Ask(t.Context(), at, f, ask, func() {}); !errors.Is(err, pando.ErrConflict) {
		t.Errorf("the same ask was answered again: %v, %v", again, err)
	}
	written := pando.Txn{Fence: f, If: []pando.Condition{{Key: ask.Key()}}, Put: []pando.Stored{ask}}
	if _, err := r.Commit(t.Context(), written); !errors.Is(err, pando.ErrConflict) {
		t.Errorf("the same ask was written again: %v", err)
	}
	if n := instancesOf(t, s); n != 2 {
		t.Errorf("%d instances, want 2", n)
	}
}

// answered sends an ask until control leads.
func answered(
	t *testing.T, r *etcd.Registry, at string, f pando.Fence, ask pando.Intent,
) []pando.Record {
	t.Helper()
	sent := 0
	for end := time.Now().Add(20 * time.Second); ; {
		records, err := r.Ask(t.Context(), at, f, ask, func() { sent++ })
		switch {
		case err == nil && sent > 0:
			return records
		case !errors.Is(err, pando.ErrUnavailable), time.Now().After(end):
			t.Fatalf("the ask, sent %d times: %v", sent, err)
		}
		if err := pando.Sleep(t.Context(), clock.Clock{}, 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

func recordAt(t *testing.T, s *etcd.Server, k pando.Key) pando.Record {
	t.Helper()
	now, err := s.Registry().Snapshot(t.Context(), k)
	if err != nil || len(now.Records) != 1 {
		t.Fatalf("%s: %v, %v", k, now.Records, err)
	}
	return now.Records[0]
}

func instancesOf(t *testing.T, s *etcd.Server) int {
	t.Helper()
	now, err := s.Registry().Snapshot(t.Context(), pando.Instance{Service: web, Host: "h2"}.Key())
	if err != nil {
		t.Fatal(err)
	}
	return len(now.Records)
}

// A captured host asks for its own instances only, as if it wrote the ask to the store.
func TestAMemberAsksForItsOwnInstancesOnly(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	_, theirs := placed(t, s)
	serves(t, s)
	decides(t, s)
	r, f := enter(t, at, member(t, a, "h2"))
	answered(t, r, at, f, copies("i5", "web-1"))
	ofOther := asks("i6", vault, theirs.ID)
	asOther := copies("i7", "web-1")
	asOther.Host = "h1"
	operator := copies("i8", "web-1")
	operator.By.Kind = pando.AskerOperator
	answer := copies("i9", "web-1").Become(pando.IntentGranted, time.Now(), "own")
	halts := asks("i10", web, "web-1")
	halts.Instance = "web-2"
	for what, ask := range map[string]pando.Intent{
		"for an instance of h1": ofOther, "as h1": asOther, "as an operator": operator,
		"with its answer": answer, "to halt another": halts, "for none": copies("i11", "web-none"),
	} {
		if _, err := r.Ask(t.Context(), at, f, ask, func() {}); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("h2 asked %s: %v", what, err)
		}
	}
	dies := copies("i12", "web-1")
	dies.Verb, dies.Instance = pando.VerbDie, "web-1"
	if _, err := r.Ask(t.Context(), at, f, dies, func() {}); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("h2 asked control to die: %v", err)
	}
	old := pando.Fence{Key: f.Key, Created: f.Created - 1}
	if got, err := r.Ask(t.Context(), at, old, copies("i13", "web-1"), func() {}); err == nil {
		t.Errorf("a former agent was answered: %v", got)
	}
	for _, id := range []pando.IntentID{"i6", "i7", "i8", "i9", "i10", "i11", "i12", "i13"} {
		for _, of := range []pando.ServiceKey{web, vault} {
			k := pando.Intent{ID: id, Service: of}.Key()
			if now, err := s.Registry().Snapshot(t.Context(), k); err != nil || len(now.Records) > 0 {
				t.Errorf("%s was written: %v", k, err)
			}
		}
	}
}
