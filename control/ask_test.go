package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/requests"
	"pando.run/pando/driver/sim"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// leadership is a control that leads over a registry in memory, and a host that has joined.
type leadership struct {
	*Control
	registry *sim.Registry
	host     pando.Fence
	ids      *sim.IDs
	peers    *sim.Peers
}

// request makes the control carry out requests with other settings.
func (l leadership) request(c requests.Config) {
	c.Mirror, c.Status, c.Peers = l.mirror, l.Reader, l.peers
	l.Requests = requests.New(c)
}

func lead(t *testing.T, delayMax time.Duration, test func(t *testing.T, l leadership)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		l := leadership{registry: sim.NewRegistry(1, delayMax), ids: &sim.IDs{}}
		svc := pando.Service{
			ServiceKey: web, VIP4: pando.VIPs4.Addr().Next().Next(), VIP6: pando.VIPs6.Addr().Next().Next(),
			Current: 1, Target: 1, Latest: 1, Phase: pando.ServiceServing,
		}
		spec := pando.Spec{Name: "web", Command: []string{"web"},
			Scale: pando.Scale{Max: 3}}.WithDefaults()
		if _, err := l.registry.Commit(ctx, pando.Txn{Put: []pando.Stored{
			svc, pando.Revision{Service: web, Number: 1, Spec: spec, State: pando.RevisionCurrent},
		}}); err != nil {
			t.Fatal(err)
		}
		var err error
		if l.host, _, err = l.registry.Join(ctx, pando.Host{Name: "h1"}, time.Second); err != nil {
			t.Fatal(err)
		}
		l.peers = sim.NewPeers()
		l.Control = New(Config{Registry: l.registry, Peers: l.peers, Clock: sim.Clock{},
			IDs: l.ids, Log: slog.New(slog.DiscardHandler), Name: "c"})
		run, stop := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- l.Run(run) }()
		time.Sleep(20 * delayMax)
		synctest.Wait()
		test(t, l)
		stop()
		<-ended
		if _, err := l.Answer(ctx, l.host, l.ask(), func() {}); !errors.Is(err, pando.ErrUnavailable) {
			t.Errorf("a control that does not lead answered: %v", err)
		}
		cancel()
		time.Sleep(2 * time.Second) // the lease of the host ends after it
	})
}

func (l leadership) ask() pando.Intent {
	now := time.Now()
	return pando.Intent{
		ID: pando.IntentID(l.ids.Sequential(now)), Service: web, Verb: pando.VerbReplicate, Host: "h1",
		By: pando.Asker{Kind: pando.AskerOperator},
	}.Become(pando.IntentAsked, now, "load")
}

func TestAnAnswerIsInTheStoreWhenItIsGiven(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		ask := l.ask()
		records, err := l.Answer(t.Context(), l.host, ask, func() {})
		if err != nil {
			t.Fatal(err)
		}
		now, err := l.registry.Snapshot(t.Context(), pando.Root)
		if err != nil {
			t.Fatal(err)
		}
		told, stored := world.New(), world.New()
		if err := errors.Join(told.Apply(records, 0),
			stored.Apply(now.Records, now.Revision)); err != nil {
			t.Fatal(err)
		}
		i := told.Intents[ask.ID]
		if i.V.State != pando.IntentPlaced || stored.Intents[ask.ID].Modified != i.Modified {
			t.Errorf("reported %s of revision %d, stored at %d", i.V.State, i.Modified,
				stored.Intents[ask.ID].Modified)
		}
		o := told.Instances[i.V.Instance]
		if o.Modified != i.Modified || stored.Instances[i.V.Instance].Modified != o.Modified {
			t.Errorf("the instance is %+v, stored %+v", o, stored.Instances[i.V.Instance])
		}
	})
}

func TestAnAskOfAHostThatLostItsEpochIsNotAnswered(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		l.registry.Depose(l.host)
		synctest.Wait()
		ask := l.ask()
		if records, err := l.Answer(t.Context(), l.host, ask, func() {}); err == nil {
			t.Errorf("it was answered: %+v", records)
		}
		if i, ok := l.mirror.World.Intents[ask.ID]; ok {
			t.Errorf("it was written: %+v", i)
		}
		for _, o := range l.mirror.World.Instances {
			if o.V.Intent == ask.ID {
				t.Errorf("it was given %s", o.V.ID)
			}
		}
	})
}

func TestAsksThatComeWhileOneIsWrittenAreAnsweredTogether(t *testing.T) {
	lead(t, 5*time.Millisecond, func(t *testing.T, l leadership) {
		const many = 20
		type told struct {
			world.Versioned[pando.Intent]
			err error
		}
		answers := make(chan told, many)
		for range many {
			ask := l.ask()
			go func() {
				records, err := l.Answer(t.Context(), l.host, ask, func() {})
				w := world.New()
				err = errors.Join(err, w.Apply(records, 0))
				answers <- told{w.Intents[ask.ID], err}
			}()
		}
		written := map[pando.StoreRevision]bool{}
		for range many {
			v := <-answers
			if v.err != nil || v.V.State == pando.IntentAsked {
				t.Errorf("an ask is %q: %v", v.V.State, v.err)
			}
			written[v.Modified] = true
		}
		if len(written) > 3 {
			t.Errorf("%d asks were answered in %d commits, want at most 3", many, len(written))
		}
		l.mirror.Mu.Lock()
		defer l.mirror.Mu.Unlock()
		if len(l.asks) > 0 {
			t.Errorf("asks are left: %v", l.asks)
		}
	})
}

// laterWait is the delay of the work that follows from an answer.
const laterWait = 5 * time.Millisecond

func TestWhatFollowsFromAnAnswerIsLookedAtBehindIt(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		due := func() (time.Duration, bool) {
			synctest.Wait()
			l.mirror.Mu.Lock()
			at, ok := l.mirror.Wakes[web]
			l.mirror.Mu.Unlock()
			return time.Until(at), ok && !l.mirror.IsDirty()
		}
		if _, err := l.Answer(t.Context(), l.host, l.ask(), func() {}); err != nil {
			t.Fatal(err)
		}
		if in, waits := due(); !waits || in <= 0 || in > laterWait {
			t.Errorf("the service is looked at again in %s (it waits: %v), want %s", in, waits, laterWait)
		}
		time.Sleep(laterWait / 2) // the watch has delivered the answer
		if _, waits := due(); !waits {
			t.Error("its own write made this control decide once more")
		}
		time.Sleep(laterWait)
		if in, _ := due(); 0 < in && in <= laterWait {
			t.Errorf("the service is looked at again in %s", in)
		}
	})
}

// One decision answers as many asks as fit into a transaction of the store. Asks beyond the bound
// of a service are refused at once and leave no record; all others are answered, in their order.
func TestAsksOfAServiceAreBounded(t *testing.T) {
	lead(t, 5*time.Millisecond, func(t *testing.T, l leadership) {
		const many = scale.AsksWaitingMax + 200
		var answered, refused atomic.Int64
		var wg sync.WaitGroup
		for range many {
			ask := l.ask()
			wg.Go(func() {
				records, err := l.Answer(t.Context(), l.host, ask, func() {})
				switch {
				case errors.Is(err, pando.ErrRefused) && len(records) == 0:
					refused.Add(1)
				case err != nil:
					t.Errorf("an ask: %v", err)
				default:
					answered.Add(1)
				}
			})
		}
		wg.Wait()
		if n := refused.Load(); n == 0 || n > 200 {
			t.Errorf("%d of %d asks were refused, want those beyond %d", n, many, scale.AsksWaitingMax)
		}
		l.mirror.Mu.Lock()
		defer l.mirror.Mu.Unlock()
		if n := answered.Load(); n+refused.Load() != many || len(l.asks) > 0 {
			t.Errorf("%d answered, %d refused, %d services wait", n, refused.Load(), len(l.asks))
		}
	})
}

// A service that spreads places the new instance on another host than the asker's.
func TestAnAskThatIsPlacedElsewhereIsAnswered(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		spread := pando.Spec{Name: "web", Command: []string{"web"}, Scale: pando.Scale{Max: 3},
			Place: pando.Place{Spread: pando.SpreadHost}}.WithDefaults()
		other, crash := context.WithCancel(t.Context())
		defer crash()
		h2 := pando.Host{Name: "h2", Tunnel: true}
		if _, _, err := l.registry.Join(other, h2, time.Second); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the leader has placed the least number
		now, err := l.registry.Snapshot(t.Context(), pando.KindInstance.Under())
		if err != nil || len(now.Records) != 1 {
			t.Fatalf("%d instances: %v", len(now.Records), err)
		}
		var first pando.Instance
		if err := world.Decode(now.Records[0], &first); err != nil {
			t.Fatal(err)
		}
		first.Phase = pando.PhaseInRotation
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{first,
			pando.Revision{Service: web, Number: 1, Spec: spread, State: pando.RevisionCurrent},
		}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		records, err := l.Answer(t.Context(), l.host, l.ask(), func() {})
		if err != nil || len(records) != 2 {
			t.Errorf("%d records: %v", len(records), err)
			return
		}
		var placed pando.Instance
		if err := world.Decode(records[0], &placed); err != nil || placed.Host == first.Host {
			t.Errorf("it is placed on %q beside the first: %v", placed.Host, err)
		}
	})
}
