package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/runner"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// stubborn starts programs that stop only after let is closed.
type stubborn struct {
	*sim.Sandboxes
	let chan struct{}
}

func (s stubborn) Start(ctx context.Context, spec pando.SandboxSpec) (pando.Sandbox, error) {
	box, err := s.Sandboxes.Start(ctx, spec)
	return stubbornBox{box, s.let}, err
}

type stubbornBox struct {
	pando.Sandbox
	let chan struct{}
}

func (b stubbornBox) Stop(ctx context.Context) error {
	<-b.let
	return b.Sandbox.Stop(ctx)
}

// A program that receives its stop signal may still finish by its own request to die.
func TestAnInstanceMayDieWhileItsProgramStops(t *testing.T) {
	onBench(t, func(b *bench) {
		let := make(chan struct{})
		b.agent.supplier.Sandboxes = stubborn{b.sandboxes, let}
		b.serving("web-1", 1)
		b.drain("web-1", true) // the program reads no events, so it is stopped at once
		b.pass(time.Second)
		b.write("web-1", "goodbye", false)
		_, err := b.agent.self.StatePush(b.ctx, "web-1")
		b.ok(err)
		began := time.Now()
		within, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		_, err = b.agent.self.Die(within, "web-1", pando.Ask{})
		if b.ok(err); time.Since(began) > 0 {
			t.Errorf("the answer took %v", time.Since(began))
		}
		b.pass(time.Second)
		if n := len(b.sandboxes.All()); n != 1 {
			t.Errorf("%d sandboxes are left while the program stops, want 1", n)
		}
		close(let)
		b.pass(time.Second)
		b.gone("web-1")
		if log := b.merged("log"); log != "goodbye\n" {
			t.Errorf("main has the log %q", log)
		}
	})
}

// hanging is a prober. Its live probes of one instance hang until let is closed.
type hanging struct {
	of  pando.InstanceID
	let chan struct{}
}

func (h hanging) Probe(_ context.Context, _ pando.Probe, box pando.Sandbox, _ pando.Port) error {
	if box.Instance() == h.of {
		<-h.let
	}
	return nil
}

// A runner that waits for a probe delays neither the steering of its service nor an answer.
func TestABusyRunnerDelaysNothing(t *testing.T) {
	onBench(t, func(b *bench) {
		b.probed(2, func(pando.InstanceID) bool { return false })
		let := make(chan struct{})
		b.prober = hanging{"web-00", let}
		b.restart()
		b.pass(2 * time.Second)
		began := time.Now()
		within, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		_, err := b.agent.self.Die(within, "web-00", pando.Ask{})
		b.refused(err)
		b.drain("web-00", false)
		b.applied(b.world().Endpoints[web].Modified)
		for range 4 {
			if got, _ := b.steering.Open(web); got != "web-01" {
				t.Errorf("after the acknowledgement a new flow went to %s", got)
			}
		}
		v, err := b.agent.self.Describe(b.ctx, "web-00")
		if b.ok(err); v.Instance.Phase != pando.PhaseDraining || len(v.Peers) != 1 {
			t.Errorf("it is described as %s with %d fellows in rotation", v.Instance.Phase, len(v.Peers))
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("that took %v", took)
		}
		close(let)
		b.steering.End("web-00")
		b.pass(2 * flows.LookMax)
		b.phase("web-00", pando.PhaseDrained)
	})
}

// gated is a steering. Its publications wait for a gate, and it records the order of calls.
type gated struct {
	*sim.Steering
	mu    sync.Mutex
	shut  bool
	open  chan struct{}
	calls []string
}

func (g *gated) called(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, name)
}

func (g *gated) Publish(ctx context.Context, t pando.SteeringTable) error {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut {
		<-g.open
	}
	g.called("publish")
	return g.Steering.Publish(ctx, t)
}

func (g *gated) Disconnect(ctx context.Context, l pando.Link) error {
	g.called("disconnect")
	return g.Steering.Disconnect(ctx, l)
}

// The table that is in force never names a link that is gone.
func TestALinkGoesAfterItsTable(t *testing.T) {
	onBench(t, func(b *bench) {
		g := &gated{Steering: b.steering, open: make(chan struct{})}
		b.front = g
		b.restart()
		b.serving("web-1", 1)
		g.mu.Lock()
		g.shut, g.calls = true, nil
		g.mu.Unlock()
		b.sandboxes.All()[0].Crash()
		b.pass(time.Second)
		if len(g.calls) > 0 || len(b.sandboxes.All()) != 1 {
			t.Errorf("%v and %d sandboxes before a table", g.calls, len(b.sandboxes.All()))
		}
		close(g.open)
		b.pass(time.Second)
		if at := slices.Index(g.calls, "disconnect"); at < 1 || g.calls[0] != "publish" {
			t.Errorf("the calls were %v, want a publication before the disconnection", g.calls)
		}
		b.gone("web-1")
	})
}

// No count ends a drain while the table in force still sends new flows to the instance.
func TestADrainWaitsForItsTable(t *testing.T) {
	onBench(t, func(b *bench) {
		g := &gated{Steering: b.steering, open: make(chan struct{})}
		b.front = g
		b.restart()
		b.serving("web-1", 1)
		g.mu.Lock()
		g.shut = true
		g.mu.Unlock()
		b.drain("web-1", false)
		b.pass(runner.CountWaitMax / 2)
		b.phase("web-1", pando.PhaseDraining)
		if got, _ := b.steering.Open(web); got != "web-1" {
			t.Fatalf("the old table sent a flow to %q", got)
		}
		close(g.open)
		b.pass(time.Second)
		b.phase("web-1", pando.PhaseDraining) // of that flow
		b.steering.End("web-1")
		b.pass(time.Second)
		b.phase("web-1", pando.PhaseDrained)
	})
}

// An instance that still gets new flows does not die, and its drain is bounded.
func TestADrainWithoutATableEndsInTheEnd(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.steering.Fail("Publish", -1)
		b.drain("web-1", false)
		_, err := b.agent.self.Die(b.ctx, "web-1", pando.Ask{})
		b.refused(err)
		b.pass(runner.CountWaitMax / 2)
		b.phase("web-1", pando.PhaseDraining)
		b.pass(runner.CountWaitMax)
		b.phase("web-1", pando.PhaseDrained)
	})
}

// A kernel that takes long to publish does not hold up the API of the host.
func TestASlowPublicationHoldsNoLock(t *testing.T) {
	onBench(t, func(b *bench) {
		g := &gated{Steering: b.steering, open: make(chan struct{})}
		b.front = g
		b.restart()
		b.serving("web-1", 1)
		b.serving("web-2", 1)
		g.mu.Lock()
		g.shut = true
		g.mu.Unlock()
		b.drain("web-1", false)
		b.write("web-2", "meanwhile", true)
		if _, err := b.agent.self.Describe(b.ctx, "web-2"); err != nil {
			t.Error(err)
		}
		within, cancel := context.WithTimeout(b.ctx, time.Second)
		defer cancel()
		if _, err := b.agent.Applied(within, onlyWeb, b.world().Endpoints[web].Modified); err == nil {
			t.Error("the host acknowledges a table that is not in force")
		}
		close(g.open)
		b.applied(b.world().Endpoints[web].Modified)
	})
}

// A halt lists its own host while the table with the instance is still in force.
func TestHaltNamesAHostWhoseTableDidNotChange(t *testing.T) {
	onBench(t, func(b *bench) {
		b.put(pando.Host{Name: "h1"})
		b.serving("web-1", 1)
		b.serving("web-2", 1)
		for _, c := range []struct {
			id     pando.InstanceID
			faults int
			want   []pando.HostName
		}{{"web-1", -1, []pando.HostName{"h1"}}, {"web-2", 0, nil}} {
			b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
				now := time.Now()
				o := b.world().Instances[c.id].V.Become(pando.PhaseDraining, now, "test")
				o.Halt = i.ID
				i = i.Become(pando.IntentGranted, now, "test").Become(pando.IntentDraining, now, "test")
				_, err := b.commit(ctx, pando.Txn{Put: []pando.Stored{i, o}})
				return nil, err
			})
			b.steering.Fail("Publish", c.faults)
			result, err := b.agent.self.Halt(b.ctx, c.id, pando.Ask{})
			if b.ok(err); !slices.Equal(result.Unreachable, c.want) {
				t.Errorf("the halt of %s lists %v, want %v", c.id, result.Unreachable, c.want)
			}
			b.steering.Fail("Publish", 0)
			b.applied(b.world().Endpoints[web].Modified)
		}
		if got, ok := b.steering.Open(web); ok {
			t.Errorf("a new flow went to %s after both halts", got)
		}
	})
}

// Control answers an agent before its watch brings the endpoints of a new instance. A halt is not
// acknowledged by endpoints that are older than the instance.
func TestAHaltWaitsForTheEndpointsOfItsInstance(t *testing.T) {
	onBench(t, func(b *bench) {
		b.put(pando.Host{Name: "h1"})
		b.serving("web-1", 1)
		was := b.world().Endpoints[web].V
		older := was
		older.Hosts, older.Seats = nil, nil
		write := func(e pando.Endpoints) {
			_, err := b.registry.Commit(b.ctx, pando.Txn{Put: []pando.Stored{e}})
			b.ok(err)
			synctest.Wait()
		}
		write(older)
		b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
			i = i.Become(pando.IntentGranted, time.Now(), "test")
			at, err := b.registry.Commit(ctx, pando.Txn{Put: []pando.Stored{i}})
			value, encoding := world.Encode(i)
			return []pando.Record{{Key: i.Key(), Value: value, Modified: at}}, errors.Join(err, encoding)
		})
		halted := make(chan error, 1)
		go func() {
			_, err := b.agent.self.Halt(b.ctx, "web-1", pando.Ask{})
			halted <- err
		}()
		b.pass(time.Minute)
		select {
		case err := <-halted:
			t.Fatalf("it was acknowledged by endpoints without the instance (%v)", err)
		default:
		}
		was.Seats = slices.Clone(was.Seats)
		was.Seats[0].Phase, was.Seats[0].Since = pando.PhaseDraining, time.Time{}
		b.drain("web-1", false)
		write(was)
		b.ok(<-halted)
	})
}
