package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// deciding is a control of one function.
type deciding func(context.Context, pando.Intent) ([]pando.Record, error)

func (d deciding) Answer(ctx context.Context, _ pando.Fence, i pando.Intent) ([]pando.Record, error) {
	return d(ctx, i)
}

// atHome makes the host of the bench its service's home.
func (b *bench) atHome(change func(*pando.Service)) {
	svc := b.world().Services[web].V
	svc.Home = "h1"
	if change != nil {
		change(&svc)
	}
	b.put(svc)
}

// prepared awaits that something is prepared for some instances, and for no others.
func (b *bench) prepared(want ...pando.InstanceID) {
	b.Helper()
	synctest.Wait()
	if got := b.sandboxes.Prepared(); !slices.Equal(got, want) {
		b.Errorf("prepared are %v, want %v", got, want)
	}
}

func TestAnAskPreparesTheStartThatItLeadsTo(t *testing.T) {
	onBench(t, func(b *bench) {
		b.atHome(nil)
		b.serving("web-1", 1)
		var proposed pando.InstanceID
		b.agent.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
			proposed = i.Instance
			b.prepared(proposed)
			if n := len(b.sandboxes.All()); n != 1 {
				t.Errorf("%d sandboxes run before the placement is known, want 1", n)
			}
			return b.grantAs(ctx, i, 0, i.Instance)
		})
		i, err := b.agent.Replicate(b.ctx, "web-1", pando.Ask{})
		if b.ok(err); proposed == "" || i.Instance != proposed {
			t.Errorf("the ask led to %q, %q was proposed", i.Instance, proposed)
		}
		b.prepared()
		if n := len(b.sandboxes.All()); n != 2 {
			t.Errorf("%d sandboxes run, want 2", n)
		}
	})
}

func TestWhatIsPreparedInVainIsGivenUp(t *testing.T) {
	refuse := func(ctx context.Context, b *bench, i pando.Intent) ([]pando.Record, error) {
		i.Instance = ""
		i = i.Become(pando.IntentRefused, time.Now(), "test")
		at, err := b.registry.Commit(ctx, pando.Txn{Put: []pando.Stored{i}})
		b.ok(err)
		text, err := pando.Encode(i)
		b.ok(err)
		return []pando.Record{{Key: i.Key(), Value: text, Modified: at}}, nil
	}
	for name, decide := range map[string]func(context.Context, *bench, pando.Intent) ([]pando.Record, error){
		"refused": refuse,
		"another name": func(ctx context.Context, b *bench, i pando.Intent) ([]pando.Record, error) {
			return b.grantAs(ctx, i, 0, "web-other")
		},
		"no answer": func(context.Context, *bench, pando.Intent) ([]pando.Record, error) {
			return nil, pando.ErrStoreFull
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.atHome(nil)
				b.serving("web-1", 1)
				var proposed []pando.InstanceID
				b.agent.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
					proposed = append(proposed, i.Instance)
					return decide(ctx, b, i)
				})
				ask := func() {
					_, err := b.agent.Replicate(b.ctx, "web-1", pando.Ask{})
					if err != nil && !errors.Is(err, pando.ErrRefused) && !errors.Is(err, pando.ErrStoreFull) {
						t.Error(err)
					}
					b.prepared()
				}
				ask()
				ask()
				time.Sleep(vainWait)
				if ask(); len(proposed) != 3 || proposed[0] == "" || proposed[1] != "" {
					t.Errorf("proposed were %q, want one at first, and none a moment later", proposed)
				}
				if name == "refused" && proposed[2] == "" {
					t.Error("nothing is ever proposed again")
				}
			})
		})
	}
}

func TestNothingIsPreparedThatWillNotBeStarted(t *testing.T) {
	for name, set := range map[string]func(b *bench){
		"the service is at home elsewhere": func(b *bench) { b.atHome(func(s *pando.Service) { s.Home = "h2" }) },
		"a rollout":                        func(b *bench) { b.atHome(func(s *pando.Service) { s.Target = 2 }) },
		"the service goes":                 func(b *bench) { b.atHome(func(s *pando.Service) { s.Removing = true }) },
		"another one starts":               func(b *bench) { b.atHome(nil); b.place("web-2", 1) },
		"no room below max":                func(b *bench) { b.atHome(nil); b.serving("web-2", 1); b.serving("web-3", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.serving("web-1", 1)
				set(b)
				b.agent.Control = deciding(func(_ context.Context, i pando.Intent) ([]pando.Record, error) {
					if i.Instance != "" {
						t.Errorf("%s was proposed", i.Instance)
					}
					b.prepared()
					return nil, pando.ErrStoreFull
				})
				if _, err := b.agent.Replicate(b.ctx, "web-1", pando.Ask{}); !errors.Is(err, pando.ErrStoreFull) {
					t.Error(err)
				}
			})
		})
	}
}
