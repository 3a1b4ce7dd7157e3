package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
)

// fenced is a request that brings a stored spec into force, or runs commands with it.
type fenced struct {
	arrange func(t *testing.T, l leadership) // with revision 2 of the hosts in force
	ask     func(ctx context.Context, l leadership) error
}

func fencedRequests() map[string]fenced {
	image := pando.Spec{Name: "web", Command: []string{"web"},
		Image: pando.Image{Reference: "r.example/web", Digest: "sha256:" + strings.Repeat("a", 64)},
		Scale: pando.Scale{Min: 3, Max: 3}, Rollout: pando.Rollout{HealthySeconds: 5}}
	return map[string]fenced{
		"deploy": {nil, func(ctx context.Context, l leadership) error {
			_, err := l.Deploy(ctx, pando.Spec{Name: "web", Command: []string{"sh"}}, anna)
			return err
		}},
		"rollback": {nil, func(ctx context.Context, l leadership) error {
			_, err := l.Rollback(ctx, web, 1, "", anna)
			return err
		}},
		"undo of a rollout": {
			func(t *testing.T, l leadership) {
				if _, err := l.Deploy(t.Context(), image, anna); err != nil {
					t.Fatal(err)
				}
			}, func(ctx context.Context, l leadership) error {
				_, err := l.UndoRollout(ctx, web, "", anna)
				return err
			}},
		"undo after a rollout": {nil, func(ctx context.Context, l leadership) error {
			_, err := l.UndoRollout(ctx, web, "", anna)
			return err
		}},
		"resume": {
			func(t *testing.T, l leadership) {
				l.roll(t, "three")
				if _, err := l.PauseRollout(t.Context(), web, "", anna); err != nil {
					t.Fatal(err)
				}
			}, func(ctx context.Context, l leadership) error {
				_, err := l.ResumeRollout(ctx, web, anna)
				return err
			}},
		"run": {nil, func(ctx context.Context, l leadership) error {
			_, err := l.StartRun(ctx, web, pando.RunAsk{Command: []string{"sh"}}, anna)
			return err
		}},
		"attached run": {nil, func(ctx context.Context, l leadership) error {
			_, err := l.AttachRun(ctx, web, pando.SessionSpec{Command: []string{"sh"}}, anna)
			return err
		}},
		"exec": {nil, func(ctx context.Context, l leadership) error {
			_, err := l.Exec(ctx, web, "", pando.SessionSpec{Command: []string{"sh"}}, anna)
			return err
		}},
	}
}

// A stored spec may use the hosts, because an operator deployed it. Each request that brings it into
// force, or runs commands with it, needs the right of its own author.
func TestATokenWithoutHostBringsNoSpecOfTheHostsIntoForce(t *testing.T) {
	for name, c := range fencedRequests() {
		t.Run(name, func(t *testing.T) {
			led(t, func(t *testing.T, l leadership) {
				if c.arrange != nil {
					c.arrange(t, l)
				}
				before := l.rollout(t)
				token := pando.Token{TokenKey: pando.TokenKey{Tenant: "default", Name: "ci"},
					May: []pando.TokenRight{pando.TokenScale, pando.TokenDeploy, pando.TokenExec}}
				err := c.ask(pando.WithToken(t.Context(), token), l)
				if !errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), "may not host") {
					t.Errorf("without the right: %v", err)
				}
				if now := l.rollout(t); now.To != before.To || now.Rolling != before.Rolling ||
					(now.Trial == nil || now.Trial.Paused == nil) != (before.Trial == nil || before.Trial.Paused == nil) {
					t.Errorf("the refused request had an effect: %+v, before %+v", now, before)
				}
				token.May = append(token.May, pando.TokenHost)
				if err := c.ask(pando.WithToken(t.Context(), token), l); errors.Is(err, pando.ErrForbidden) {
					t.Errorf("with the right: %v", err)
				}
			})
		})
	}
}

// The number of a revision may mean another spec after a restore. If the store lacks the spec of an
// instance, a token may neither enter it nor continue its snapshot.
func TestATokenEntersTheStoredSpecOnly(t *testing.T) {
	c := keeping(t)
	spec := pando.Spec{Name: "web", Image: pando.Image{Reference: "web", Digest: "sha256:1"}}
	put := func(hash string) {
		c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
			pando.Host{Name: "h1", Freezes: true},
			pando.Service{ServiceKey: web, Current: 1, Target: 1, Latest: 1},
			pando.Revision{Service: web, Number: 1, Spec: spec},
			pando.Instance{ID: "web-9", Service: web, Host: "h1", Revision: 1, SpecHash: hash,
				Phase: pando.PhaseInRotation},
		}}, 2)
	}
	ctx := pando.WithToken(t.Context(), pando.Token{May: []pando.TokenRight{pando.TokenExec, pando.TokenDeploy}})
	may := func(ctx context.Context) error {
		return c.operators.mayEnter(ctx, web, "web-9")
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
	c.operators.peers = lists{all: map[pando.HostName][]pando.SealedSnapshot{"h1": {one}}}
	if _, err := c.RestoreSnapshot(t.Context(), web, "bbbbbbbb", anna); !errors.Is(err, pando.ErrConflict) ||
		!strings.Contains(err.Error(), "is of another spec") {
		t.Errorf("a snapshot of another spec: %v", err)
	}
}

func TestATokenWithoutHostRestoresNoSnapshotOfASpecOfTheHosts(t *testing.T) {
	c := keeping(t)
	c.operators.peers = lists{all: map[pando.HostName][]pando.SealedSnapshot{
		"h1": {proved(t, c, web, "web-9", "sha256:"+strings.Repeat("b", 64))}}}
	c.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
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
