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
