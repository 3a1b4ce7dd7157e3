package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// deciding is a control made of one function.
type deciding func(context.Context, pando.Intent) ([]pando.Record, error)

func (d deciding) Answer(
	ctx context.Context, _ pando.Fence, i pando.Intent, sent func(),
) ([]pando.Record, error) {
	sent()
	return d(ctx, i)
}

// hearing is a control that calls sent itself when it has received an ask.
type hearing func(i pando.Intent, sent func()) ([]pando.Record, error)

func (h hearing) Answer(
	_ context.Context, _ pando.Fence, i pando.Intent, sent func(),
) ([]pando.Record, error) {
	return h(i, sent)
}

// claim grants an ask an instance in reserve.
func (b *bench) claim(
	ctx context.Context, i pando.Intent, id pando.InstanceID,
) ([]pando.Record, error) {
	now, known := time.Now(), b.world().Instances[id]
	o := known.V
	o.Warm, o.Intent = false, i.ID
	o = o.Become(pando.PhasePlaced, now, "test")
	i.Instance = id
	i = i.Become(pando.IntentGranted, now, "test").Become(pando.IntentPlaced, now, "test")
	at, err := b.commit(ctx,
		pando.Txn{If: []pando.Condition{known.If()}, Put: []pando.Stored{i, o}})
	b.ok(err)
	var out []pando.Record
	for _, v := range []pando.Stored{o, i} {
		text, err := world.Encode(v)
		b.ok(err)
		out = append(out, pando.Record{Key: v.Key(), Value: text, Modified: at})
	}
	return out, nil
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

// prepared checks that starts are prepared for exactly these instances.
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
		b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
			proposed = i.Instance
			b.prepared(proposed)
			if n := len(b.sandboxes.All()); n != 1 {
				t.Errorf("%d sandboxes run before the placement is known, want 1", n)
			}
			return b.grantAs(ctx, i, 0, i.Instance)
		})
		i, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{})
		if b.ok(err); proposed == "" || i.Instance != proposed {
			t.Errorf("the ask led to %q, %q was proposed", i.Instance, proposed)
		}
		b.prepared()
		if n := len(b.sandboxes.All()); n != 2 {
			t.Errorf("%d sandboxes run, want 2", n)
		}
	})
}

// noting keeps the newest prepared start.
type noting struct {
	*sim.Sandboxes
	last *pando.SandboxSpec
}

func (n noting) Prepare(ctx context.Context, s pando.SandboxSpec) error {
	*n.last = s
	return n.Sandboxes.Prepare(ctx, s)
}

// The program learns its role from its environment, so a preparation with another role is useless.
func TestThePreparedInstanceHasTheRoleThatControlGives(t *testing.T) {
	for _, want := range []pando.Role{pando.RoleFirst, pando.RoleReplica} {
		onBench(t, func(b *bench) {
			b.atHome(nil)
			b.fromZero()
			var prepared pando.SandboxSpec
			front := noting{b.sandboxes, &prepared}
			b.agent.self.Sandboxes, b.agent.supplier.Sandboxes = front, front
			b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
				return b.grantAs(ctx, i, 0, i.Instance)
			})
			if want == pando.RoleFirst {
				b.steering.Knock(web)
			} else {
				b.serving("web-1", 1)
				_, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{})
				b.ok(err)
			}
			synctest.Wait()
			if got := prepared.Instance.Role; got != want {
				t.Errorf("an instance with the role %q is prepared, want %q", got, want)
			}
		})
	}
}

// late prepares a start only after let is closed.
type late struct {
	*sim.Sandboxes
	let chan struct{}
}

func (l late) Prepare(ctx context.Context, s pando.SandboxSpec) error {
	<-l.let
	return l.Sandboxes.Prepare(ctx, s)
}

func TestAPreparationThatTheStartHasOvertakenIsGivenUp(t *testing.T) {
	onBench(t, func(b *bench) {
		b.atHome(nil)
		b.serving("web-1", 1)
		let := make(chan struct{})
		front := late{b.sandboxes, let}
		b.agent.self.Sandboxes, b.agent.supplier.Sandboxes = front, front
		b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
			return b.grantAs(ctx, i, 0, i.Instance)
		})
		_, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{})
		b.ok(err)
		synctest.Wait()
		if n := len(b.sandboxes.All()); n != 2 {
			t.Errorf("%d sandboxes run, want 2", n)
		}
		close(let)
		b.prepared()
	})
}

func TestNothingIsPreparedBeforeTheAskIsOnItsWay(t *testing.T) {
	ask := func(b *bench, h hearing) {
		b.Helper()
		b.agent.self.Control = h
		if _, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{}); !errors.Is(err, pando.ErrStoreFull) {
			b.Error(err)
		}
	}
	onBench(t, func(b *bench) {
		b.atHome(nil)
		b.serving("web-1", 1)
		for range 2 { // a preparation that was not begun does not count as discarded
			ask(b, func(i pando.Intent, _ func()) ([]pando.Record, error) {
				if b.prepared(); i.Instance == "" {
					t.Error("nothing is proposed")
				}
				return nil, pando.ErrStoreFull
			})
		}
		ask(b, func(i pando.Intent, sent func()) ([]pando.Record, error) {
			sent()
			b.prepared(i.Instance)
			return nil, pando.ErrStoreFull
		})
		b.prepared()
	})
	onBench(t, func(b *bench) {
		b.atHome(nil)
		b.serving("web-1", 1)
		b.reserve("web-2")
		ask(b, func(_ pando.Intent, sent func()) ([]pando.Record, error) {
			b.paused("web-2", true)
			sent()
			b.paused("web-2", false)
			return nil, pando.ErrStoreFull
		})
		b.paused("web-2", true)
	})
}

func TestWhatIsPreparedInVainIsGivenUp(t *testing.T) {
	refuse := func(ctx context.Context, b *bench, i pando.Intent) ([]pando.Record, error) {
		i.Instance = ""
		i = i.Become(pando.IntentRefused, time.Now(), "test")
		at, err := b.commit(ctx, pando.Txn{Put: []pando.Stored{i}})
		b.ok(err)
		text, err := world.Encode(i)
		b.ok(err)
		return []pando.Record{{Key: i.Key(), Value: text, Modified: at}}, nil
	}
	for name, decide := range map[string]func(
		context.Context, *bench, pando.Intent,
	) ([]pando.Record, error){
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
				b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
					proposed = append(proposed, i.Instance)
					return decide(ctx, b, i)
				})
				ask := func() {
					_, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{})
					if err != nil && !errors.Is(err, pando.ErrRefused) && !errors.Is(err, pando.ErrStoreFull) {
						t.Error(err)
					}
					b.prepared()
				}
				ask()
				ask()
				time.Sleep(time.Second)
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

// reserve puts an instance in reserve.
func (b *bench) reserve(id pando.InstanceID) {
	b.Helper()
	b.put(pando.Instance{
		ID: id, Service: web, Host: "h1", Revision: 1, Weight: 100, Phase: pando.PhasePlaced, Warm: true,
		Reason: "test", Born: time.Now(), Since: time.Now().Add(-time.Second),
	})
	b.ok(b.agent.self.Ready(b.ctx, id))
	b.phase(id, pando.PhaseWarm)
}

// paused checks whether an instance is paused.
func (b *bench) paused(id pando.InstanceID, want bool) {
	b.Helper()
	synctest.Wait()
	for _, box := range b.sandboxes.All() {
		if box.Instance() == id && box.Paused() != want {
			b.Errorf("%s is paused: %v, want %v", id, !want, want)
		}
	}
}

func TestAReserveIsAwakeWhileAnAskMayClaimIt(t *testing.T) {
	for _, granted := range []bool{true, false} {
		onBench(t, func(b *bench) {
			b.atHome(nil)
			b.serving("web-1", 1)
			b.reserve("web-2")
			b.paused("web-2", true)
			b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
				b.paused("web-2", false)
				for range 3 {
					if who, _ := b.steering.Open(web); who != "web-1" {
						t.Errorf("a flow came to %q before it was claimed", who)
					}
				}
				for range 3 {
					b.steering.End("web-1")
				}
				if i.Instance != "" {
					t.Errorf("%s is to be started though there is a reserve", i.Instance)
				}
				if !granted {
					return nil, pando.ErrStoreFull
				}
				return b.claim(ctx, i, "web-2")
			})
			_, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{})
			if granted != (err == nil) {
				t.Error(err)
			}
			b.paused("web-2", !granted)
			if granted {
				b.phase("web-2", pando.PhaseInRotation)
				return
			}
			b.phase("web-2", pando.PhaseWarm)
			b.agent.self.Control = deciding(func(context.Context, pando.Intent) ([]pando.Record, error) {
				b.paused("web-2", true) // one has just been refused
				return nil, pando.ErrStoreFull
			})
			_, _ = b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{})
		})
	}
}

// An agent dies while an ask is on its way. The next agent puts the reserve to sleep again.
func TestAReserveThatAFormerAgentCalledSleepsAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		b.atHome(nil)
		b.serving("web-1", 1)
		b.reserve("web-2")
		b.stop()
		for _, box := range b.sandboxes.All() {
			b.ok(box.Resume(b.ctx))
		}
		b.start()
		b.paused("web-2", true)
		b.paused("web-1", false)
	})
}

func TestNothingIsPreparedThatWillNotBeStarted(t *testing.T) {
	for name, set := range map[string]func(b *bench){
		"the service is at home elsewhere": func(b *bench) {
			b.atHome(func(s *pando.Service) { s.Home = "h2" })
		},
		"a rollout":          func(b *bench) { b.atHome(func(s *pando.Service) { s.Target = 2 }) },
		"the service goes":   func(b *bench) { b.atHome(func(s *pando.Service) { s.Removing = true }) },
		"another one starts": func(b *bench) { b.atHome(nil); b.place("web-2", 1) },
		"no room below max": func(b *bench) {
			b.atHome(nil)
			b.serving("web-2", 1)
			b.serving("web-3", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.serving("web-1", 1)
				set(b)
				b.agent.self.Control = deciding(func(_ context.Context, i pando.Intent) ([]pando.Record, error) {
					if i.Instance != "" {
						t.Errorf("%s was proposed", i.Instance)
					}
					b.prepared()
					return nil, pando.ErrStoreFull
				})
				_, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{})
				if !errors.Is(err, pando.ErrStoreFull) {
					t.Error(err)
				}
			})
		})
	}
}
