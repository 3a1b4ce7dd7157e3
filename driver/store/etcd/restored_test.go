package etcd

import (
	"errors"
	"testing"
	"time"

	"pando.run/pando"
)

// After a restore a member brings back the record of an instance if it knows the spec of the stored
// revision: its number may mean another spec now. It reads the specs of no other service.
func TestAMemberBringsBackWhatItRanAndReadsNothingElse(t *testing.T) {
	s, at, member := startForMembers(t)
	ran := pando.Spec{Name: "web", Command: []string{"web"}}.WithDefaults()
	web, vault := pando.DefaultService("web"), pando.ServiceKey{Tenant: "bank", Name: "vault"}
	now := time.Now()
	commit(t, s.Registry(), pando.Txn{Put: []pando.Stored{
		pando.Cluster{ID: "ours", Generation: 2, Restored: now},
		pando.Service{ServiceKey: web, Current: 1, Target: 1, Latest: 2},
		pando.Revision{Service: web, Number: 1, Spec: ran},
		pando.Revision{Service: web, Number: 2, Spec: pando.Spec{Name: "web", Command: []string{"other"}}},
		pando.Service{ServiceKey: vault, Current: 1, Target: 1, Latest: 1},
		pando.Revision{Service: vault, Number: 1, Spec: pando.Spec{Name: "vault", Command: []string{"secret"}}},
	}})
	r, err := Dial(t.Context(), "https://"+at, member.ToServer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	fence, _, err := r.Join(t.Context(), pando.Host{Name: "h2", Slot: 1}, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	specs := func(k pando.ServiceKey) int {
		t.Helper()
		got, err := r.Snapshot(t.Context(), pando.RevisionsOf(k))
		if err != nil {
			t.Fatal(err)
		}
		return len(got.Records)
	}
	back := func(k pando.ServiceKey, revision int, hash string) error {
		i := pando.Instance{ID: "i-1", Service: k, Host: "h2", Revision: revision, SpecHash: hash,
			Phase: pando.PhaseInRotation, Born: now.Add(-time.Hour), Since: now}
		_, err := r.Commit(t.Context(), pando.Txn{Fence: fence, If: []pando.Condition{{Key: i.Key()}},
			Put: []pando.Stored{i}})
		return err
	}
	if n := specs(vault) + specs(web); n != 0 {
		t.Errorf("the member reads %d specs before it has brought anything back", n)
	}
	for what, err := range map[string]error{
		"no hash":                   back(vault, 1, ""),
		"the hash of another spec":  back(vault, 1, ran.Hash()),
		"a number with a new spec":  back(web, 2, ran.Hash()),
		"a revision that is absent": back(web, 3, ran.Hash()),
	} {
		if !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := back(web, 1, ran.Hash()); err != nil {
		t.Fatalf("the instance that it ran: %v", err)
	}
	if specs(web) != 2 || specs(vault) != 0 {
		t.Errorf("it reads %d specs of web and %d of vault, want 2 and 0", specs(web), specs(vault))
	}
	other := pando.Instance{ID: "i-1", Service: web, Host: "h2", Revision: 1, SpecHash: "another",
		Phase: pando.PhaseInRotation, Born: now, Since: now}
	if _, err := r.Commit(t.Context(), pando.Txn{Fence: fence,
		Put: []pando.Stored{other}}); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("it changed the hash: %v", err)
	}
}
