package agent

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// granting is a control that grants each ask a new instance on this host. It can be out of reach,
// and its answers can get lost.
type granting struct {
	b    *bench
	away bool
	lost bool
}

func (g *granting) Answer(
	ctx context.Context, _ pando.Fence, i pando.Intent, sent func(),
) ([]pando.Record, error) {
	if g.away {
		return nil, fmt.Errorf("%w: connection refused", pando.ErrUnavailable)
	}
	sent()
	records, err := g.b.grant(ctx, i, 0)
	if err == nil && g.lost {
		return nil, fmt.Errorf("%w: connection reset", pando.ErrUnavailable)
	}
	return records, err
}

// grant writes control's answer to an ask. known is the version of the ask in the store.
func (b *bench) grant(
	ctx context.Context, i pando.Intent, known pando.StoreRevision,
) ([]pando.Record, error) {
	return b.grantAs(ctx, i, known, b.ids.Instance("web"))
}

func (b *bench) grantAs(
	ctx context.Context, i pando.Intent, known pando.StoreRevision, as pando.InstanceID,
) ([]pando.Record, error) {
	now := time.Now()
	o := pando.Instance{
		ID: as, Role: pando.RoleReplica, Service: web, Host: "h1", Revision: 1, Weight: 100,
		Phase: pando.PhasePlaced, Reason: "test", Intent: i.ID, Born: now, Since: now,
	}
	i.Instance = o.ID
	i = i.Become(pando.IntentGranted, now, "test").Become(pando.IntentPlaced, now, "test")
	at, err := b.commit(ctx,
		pando.Txn{If: []pando.Condition{{Key: i.Key(), Modified: known}}, Put: []pando.Stored{i, o}})
	if err != nil {
		return nil, err
	}
	var out []pando.Record
	for _, v := range []pando.Stored{i, o} {
		text, err := world.Encode(v)
		if err != nil {
			return nil, err
		}
		out = append(out, pando.Record{Key: v.Key(), Value: text, Modified: at})
	}
	return out, nil
}

// firstOf returns an intent as it was first written by the commits after a given number.
func (b *bench) firstOf(k pando.Key, after int) (i pando.Intent) {
	b.Helper()
	for _, batch := range b.registry.History()[after:] {
		for _, r := range batch.Changes {
			if r.Key == k {
				b.ok(world.Decode(r, &i))
				return i
			}
		}
	}
	b.Fatalf("%s was never written", k)
	return i
}

func TestAnAskStartsOneInstanceWhateverBecomesOfTheAnswer(t *testing.T) {
	for name, control := range map[string]granting{
		"answered": {}, "the answer is lost": {lost: true}, "out of reach": {away: true},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				control.b = b
				b.agent.self.Control = &control
				b.serving("web-1", 1)
				writes := len(b.registry.History())
				got := make(chan pando.Intent)
				go func() {
					i, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{Reason: "load"})
					if err != nil {
						t.Error(err)
					}
					got <- i
				}()
				synctest.Wait()
				if control.away { // it reads the ask in the store
					for _, i := range b.world().Intents {
						_, err := b.grant(b.ctx, i.V, i.Modified)
						b.ok(err)
					}
				}
				i := <-got
				if i.State != pando.IntentPlaced {
					t.Errorf("the ask is %s", i.State)
				}
				synctest.Wait()
				if n := len(b.sandboxes.All()); n != 2 {
					t.Errorf("%d sandboxes run, want 2", n)
				}
				if first := b.firstOf(i.Key(), writes); control.away != (first.State == pando.IntentAsked) {
					t.Errorf("the first that was written of the ask is %s", first.State)
				}
			})
		})
	}
}
