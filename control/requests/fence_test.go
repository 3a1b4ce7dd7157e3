package requests

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
)

// The number of a revision may mean another spec after a restore. If the store lacks the spec of an
// instance, a token may neither enter it nor continue its snapshot.
func TestATokenEntersTheStoredSpecOnly(t *testing.T) {
	c := keeping(t)
	spec := pando.Spec{Name: "web", Image: pando.Image{Reference: "web", Digest: "sha256:1"}}
	put := func(hash string) {
		c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
			pando.Host{Name: "h1", Freezes: true},
			pando.Service{ServiceKey: web, Current: 1, Target: 1, Latest: 1},
			pando.Revision{Service: web, Number: 1, Spec: spec},
			pando.Instance{ID: "web-9", Service: web, Host: "h1", Revision: 1, SpecHash: hash,
				Phase: pando.PhaseInRotation},
		}}, 2)
	}
	ctx := pando.WithToken(t.Context(), pando.Token{May: []pando.TokenRight{pando.TokenExec, pando.TokenDeploy}})
	may := func(ctx context.Context) error {
		return c.desk.mayEnter(ctx, web, "web-9")
	}
	for hash, want := range map[string]bool{spec.Hash(): true, "": true, "another": false} {
		put(hash)
		if err := may(ctx); (err == nil) != want || err != nil && !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("with the hash %q: %v", hash, err)
		}
		if err := may(t.Context()); err != nil {
			t.Errorf("an operator of the hosts: %v", err)
		}
	}
	st := pando.SnapshotStatus{Digest: "sha256:" + strings.Repeat("b", 64), Service: web, Instance: "web-9",
		Revision: 1, SpecHash: "another", Host: "h1"}
	key, err := c.vault.SnapshotSealKey(web, "web-9", 1)
	if err != nil {
		t.Fatal(err)
	}
	one, err := key.Prove(st)
	if err != nil {
		t.Fatal(err)
	}
	c.desk.peers = lists{all: map[pando.HostName][]pando.SealedSnapshot{"h1": {one}}}
	if _, err := c.RestoreSnapshot(t.Context(), web, "bbbbbbbb", anna); !errors.Is(err, pando.ErrConflict) ||
		!strings.Contains(err.Error(), "is of another spec") {
		t.Errorf("a snapshot of another spec: %v", err)
	}
}

func TestATokenWithoutHostRestoresNoSnapshotOfASpecOfTheHosts(t *testing.T) {
	c := keeping(t)
	c.desk.peers = lists{all: map[pando.HostName][]pando.SealedSnapshot{
		"h1": {proved(t, c, web, "web-9", "sha256:"+strings.Repeat("b", 64))}}}
	c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Host{Name: "h1", Freezes: true},
		pando.Service{ServiceKey: web, Current: 1, Target: 1, Latest: 1},
		pando.Revision{Service: web, Number: 1, Spec: pando.Spec{Name: "web", Command: []string{"web"}}},
	}}, 2)
	ctx, stop := context.WithCancel(pando.WithToken(t.Context(), pando.Token{}))
	if _, err := c.RestoreSnapshot(ctx, web, "bbbbbbbb", anna); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("without the right: %v", err)
	}
	stop() // nobody answers the intent
	if _, err := c.RestoreSnapshot(pando.WithToken(ctx, pando.Token{May: pando.TokenRights}), web,
		"bbbbbbbb", anna); errors.Is(err, pando.ErrForbidden) {
		t.Errorf("with the right: %v", err)
	}
}
