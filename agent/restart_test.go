package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
)

func TestInstancesAndFlowsOutliveTheAgent(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.write("web-1", "before", true)
		flow, _ := b.steering.Open(web)
		b.restart()
		b.phase("web-1", pando.PhaseInRotation)
		if b.steering.FlowsOf(flow) != 1 || b.steering.Broken() != 0 {
			t.Errorf("%d flows are left, %d were broken", b.steering.FlowsOf(flow), b.steering.Broken())
		}
		b.write("web-1", "after", true)
		_, err := b.agent.self.StatePush(b.ctx, "web-1")
		b.ok(err)
		if log := b.merged("log"); log != "before\nafter\n" {
			t.Errorf("main has the log %q", log)
		}
	})
}

// The application reports once that it is ready. The agent may die before it records that.
func TestReadinessOutlivesTheAgent(t *testing.T) {
	onBench(t, func(b *bench) {
		b.place("web-1", 1)
		b.phase("web-1", pando.PhaseStarting)
		b.registry.Fail(pando.ErrUnavailable)
		b.ok(b.agent.self.Ready(b.ctx, "web-1"))
		synctest.Wait()
		flow, ok := b.steering.Open(web)
		if !ok {
			t.Fatal("it is ready, and without the store nothing is steered to it")
		}
		b.stop()
		b.registry.Fail(nil)
		b.phase("web-1", pando.PhaseStarting) // the step is lost
		b.start()
		b.phase("web-1", pando.PhaseInRotation)
		if b.steering.FlowsOf(flow) != 1 {
			t.Error("the flow that came before was broken")
		}
	})
}

func TestAnInstanceThatEndedWhileNobodyLookedIsFound(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.stop()
		b.sandboxes.All()[0].Crash()
		synctest.Wait()
		b.start()
		time.Sleep(time.Second)
		b.gone("web-1")
	})
}

func TestARebootEndsInstancesWithAReason(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.write("web-1", "kept", true)
		b.stop()
		b.sandboxes.Reboot()
		b.start()
		time.Sleep(time.Second)
		b.gone("web-1")
		if log := b.merged("log"); log != "kept\n" {
			t.Errorf("main has the log %q", log)
		}
	})
}

func TestASandboxWithoutARecordGoes(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.write("web-1", "kept", true)
		b.stop()
		_, err := b.commit(b.ctx,
			pando.Txn{Delete: []pando.Key{b.world().Instances["web-1"].V.Key()}})
		b.ok(err)
		b.start()
		time.Sleep(time.Second)
		b.gone("web-1")
		if log := b.merged("log"); log != "kept\n" {
			t.Errorf("its branch was dropped without a merge: main has the log %q", log)
		}
	})
}

func TestAFullStoreRefusesAndSteersOn(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.registry.Fail(pando.ErrStoreFull)
		if _, err := b.agent.self.Replicate(b.ctx, "web-1", pando.Ask{}); !errors.Is(err, pando.ErrStoreFull) {
			t.Errorf("replicate: %v", err)
		}
		b.write("web-1", "kept on this host", true)
		if _, err := b.agent.self.StatePush(b.ctx, "web-1"); !errors.Is(err, pando.ErrStoreFull) {
			t.Errorf("push: %v", err)
		}
		if _, ok := b.steering.Open(web); !ok {
			t.Error("nothing is steered to the instance")
		}
		b.registry.Fail(nil)
		_, err := b.agent.self.StatePush(b.ctx, "web-1")
		b.ok(err)
		if log := b.merged("log"); log != "kept on this host\n" {
			t.Errorf("main has the log %q", log)
		}
	})
}

// A crash between deleting the record and dropping the branch leaves the branch to the next agent.
func TestABranchWithoutAnInstanceIsMergedOnce(t *testing.T) {
	onBench(t, func(b *bench) {
		repo := state.Open(b.objects, web,
			map[string]pando.StateType{"hits": pando.StateCounter, "log": pando.StateLog})
		left, err := repo.Born(b.ctx, "web-0", pando.ObjectID{})
		b.ok(err)
		b.ok(errors.Join(left.Patch("hits", []byte("1")), left.Patch("log", []byte("left behind"))))
		_, err = left.Commit(b.ctx, "left", time.Now())
		b.ok(err)
		for range 2 {
			b.restart()
			time.Sleep(time.Second)
			if log, hits := b.merged("log"), b.merged("hits"); log != "left behind\n" || hits != "1" {
				t.Errorf("main has the log %q and %s hits", log, hits)
			}
		}
		b.gone("web-0")
	})
}

// A host leaves although its store takes no writes, and Leave returns the error.
func TestAFullStoreKeepsNoHost(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.registry.Fail(pando.ErrStoreFull)
		defer b.registry.Fail(nil)
		began := time.Now()
		left, err := b.agent.Leave(b.ctx, 0)
		if took := time.Since(began); took > 2*settleMax || left != 1 || err == nil {
			b.Errorf("after %s: %d instances are left: %v", took, left, err)
		}
	})
}

// When the leader dies, the instances of a leaving host get no orders to end. The host waits for
// the next leader, and for a limited time.
func TestAHostThatLeavesWaitsForTheOrders(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		onBench(t, func(b *bench) {
			b.serving("web-1", 1)
			began, ended := time.Now(), make(chan int)
			go func() {
				left, err := b.agent.Leave(b.ctx, time.Second)
				b.ok(err)
				ended <- left
			}()
			if ordered {
				time.Sleep(orderWaitMax - time.Second) // longer than the time that it gives to connections
				b.drain("web-1", true)
			}
			left := <-ended
			if took := time.Since(began); ordered != (left == 0) || took < orderWaitMax-time.Second ||
				took > 2*orderWaitMax {
				b.Errorf("ordered: %v: after %s, %d are left", ordered, took, left)
			}
		})
	}
}

// lateJoins is a registry whose answer to the second join comes late.
type lateJoins struct {
	pando.Registry
	joins atomic.Int64
}

func (r *lateJoins) Join(
	ctx context.Context, h pando.Host, lease time.Duration,
) (pando.Fence, <-chan struct{}, error) {
	n := r.joins.Add(1)
	fence, lost, err := r.Registry.Join(ctx, h, lease)
	if n == 2 {
		time.Sleep(time.Second)
	}
	return fence, lost, err
}

// A host that leaves joins once more, so the lease of its first join is lost. Whichever of the two
// joins that follow ends first, the host writes with the fence of the last one.
func TestAHostThatLeavesWritesWithItsLastFence(t *testing.T) {
	onBench(t, func(b *bench) {
		b.through = &lateJoins{Registry: b.registry}
		b.restart()
		b.serving("web-1", 1)
		go func() {
			time.Sleep(2 * time.Second)
			b.drain("web-1", true)
		}()
		if left, err := b.agent.Leave(b.ctx, time.Second); left != 0 || err != nil {
			b.Errorf("%d instances are left: %v", left, err)
		}
	})
}
