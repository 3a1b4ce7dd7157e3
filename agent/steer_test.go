package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/steer"
)

// A table that could not be published is published again. Until then a halt is not acknowledged.
func TestAFailedPublicationIsTriedAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.serving("web-2", 1)
		b.steering.Fail("Publish", -1)
		b.drain("web-1", false)
		at := b.world().Endpoints[web].Modified
		within, cancel := context.WithTimeout(b.ctx, 700*time.Millisecond)
		defer cancel()
		if _, err := b.agent.Applied(within, onlyWeb, at); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a host that steers as before acknowledges: %v", err)
		}
		onlyOther := []pando.ServiceKey{pando.DefaultService("other")}
		if _, err := b.agent.Applied(b.ctx, onlyOther, at); err != nil {
			t.Errorf("another service waits for it: %v", err)
		}
		b.steering.Fail("Publish", 0)
		b.applied(at)
		for range 2 {
			if got, _ := b.steering.Open(web); got != "web-2" {
				t.Errorf("after the acknowledgement a new flow went to %s", got)
			}
		}
	})
}

func TestAttemptsToPublishGetRarer(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.steering.Fail("Publish", -1)
		b.drain("web-1", false)
		before := b.steering.Calls("Publish")
		time.Sleep(time.Minute)
		if n := b.steering.Calls("Publish") - before; n < 10 || n > 30 {
			t.Errorf("%d attempts in a minute, want 10 to 30", n)
		}
	})
}

func TestAWithdrawalAndTheWaysToHostsAreTriedAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		b.steering.Fail("Neighbours", 2)
		b.steering.Fail("Withdraw", 2)
		before := b.steering.Calls("Neighbours")
		b.put(pando.Host{Name: "h2"})
		if _, err := b.commit(b.ctx, pando.Txn{Delete: []pando.Key{web.Key()}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := b.steering.Calls("Neighbours") - before; n != 3 {
			t.Errorf("%d attempts to find the way to other hosts, want 3", n)
		}
		if left, _ := b.steering.Published(b.ctx); len(left) > 0 {
			t.Errorf("%v is still steered", left)
		}
	})
}

// A ready instance is in rotation only while it is connected and its table is in force.
func TestOnlyWhatIsSteeredIsInRotation(t *testing.T) {
	for _, method := range []string{"Publish", "Connect"} {
		t.Run(method, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.steering.Fail(method, -1)
				b.place("web-1", 1)
				b.ok(b.agent.self.Ready(b.ctx, "web-1"))
				time.Sleep(3 * time.Second)
				if i := b.world().Instances["web-1"].V; i.Phase == pando.PhaseInRotation {
					t.Errorf("it is %s while every %s fails", i.Phase, method)
				}
				b.steering.Fail(method, 0)
				time.Sleep(steer.RetryWaitMax)
				b.phase("web-1", pando.PhaseInRotation)
				if got, _ := b.steering.Open(web); got != "web-1" {
					t.Errorf("a new flow went to %q", got)
				}
			})
		})
	}
}

func TestAnInstanceThatIsNeverConnectedFails(t *testing.T) {
	onBench(t, func(b *bench) {
		b.steering.Fail("Connect", -1)
		b.place("web-1", 1)
		b.ok(b.agent.self.Ready(b.ctx, "web-1"))
		time.Sleep(2 * time.Minute)
		b.gone("web-1")
	})
}

// Uncountable flows are not "no flows". Death is refused, and the drain waits up to countWaitMax.
func TestUncountableFlowsHoldADrainUp(t *testing.T) {
	for _, method := range []string{"Flows", "Sweep"} {
		t.Run(method, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.serving("web-1", 1)
				b.steering.Fail(method, -1)
				b.drain("web-1", false)
				time.Sleep(runner.CountWaitMax / 2)
				b.phase("web-1", pando.PhaseDraining)
				if method == "Flows" {
					_, err := b.agent.self.Die(b.ctx, "web-1", pando.Ask{})
					b.refused(err)
				}
				time.Sleep(runner.CountWaitMax)
				b.phase("web-1", pando.PhaseDrained)
			})
		})
	}
}

// The flows of a long drain are counted at growing intervals.
func TestALongDrainIsLookedAtSeldom(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.steering.Open(web)
		b.drain("web-1", false)
		time.Sleep(5 * time.Minute)
		before := b.steering.Calls("Flows")
		time.Sleep(time.Minute)
		if n := b.steering.Calls("Flows") - before; n > 70 {
			t.Errorf("%d looks in a minute, want one a second", n)
		}
		b.steering.End("web-1")
		time.Sleep(2 * flows.LookMax)
		b.phase("web-1", pando.PhaseDrained)
	})
}

// Five hundred instances of one service start. The work grows with their number and not with its
// square.
func TestManyInstancesOfOneService(t *testing.T) {
	onBench(t, func(b *bench) {
		const n = manyInstances
		var all []pando.Stored
		for k := range n {
			all = append(all, pando.Instance{
				ID: pando.InstanceID(fmt.Sprintf("web-%03d", k)), Service: web, Host: "h1", Revision: 1,
				Weight: 100, Phase: pando.PhasePlaced, Reason: "test", Born: time.Now(), Since: time.Now(),
			})
		}
		b.put(all...)
		steps := b.agent.host.Tally.Steps.Load()
		for _, i := range all {
			b.ok(b.agent.self.Ready(b.ctx, i.(pando.Instance).ID))
		}
		synctest.Wait()
		time.Sleep(time.Second)
		in := 0
		for _, i := range b.world().Of(web) {
			if i.Phase == pando.PhaseInRotation {
				in++
			}
		}
		if in != n {
			t.Errorf("%d of %d are in rotation", in, n)
		}
		if took := b.agent.host.Tally.Steps.Load() - steps; took > 10*n {
			t.Errorf("%d runners took %d steps to come into rotation, want at most %d", n, took, 10*n)
		}
		steps = b.agent.host.Tally.Steps.Load()
		b.drain("web-000", false)
		if took := b.agent.host.Tally.Steps.Load() - steps; took > 20 {
			t.Errorf("the drain of one instance made the runners take %d steps", took)
		}
	})
}

func TestPeersAreToldOncePerChange(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.serving("web-2", 1)
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		r, err := b.agent.crews.Runner("web-1")
		b.ok(err)
		told, _ := r.Events.Since(0)
		news := r.Events.Stream(ctx, told[len(told)-1].ID)
		i := b.world().Instances["web-2"].V
		i.Weight = 50 // a change that does not affect the set of instances that take flows
		b.put(i)
		b.drain("web-2", false)
		synctest.Wait()
		if e := <-news; e.Kind != pando.EventPeers || e.Data.(map[string]int)["in_rotation"] != 1 {
			t.Errorf("told %v", e)
		}
		time.Sleep(time.Second)
		select {
		case e := <-news:
			t.Errorf("told %v, too", e)
		default:
		}
	})
}

// The event ids of an agent are greater than those of the agent before it. A listener that resumes
// misses nothing.
func TestEventsAreNotLostOverARestart(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.serving("web-2", 1)
		r, err := b.agent.crews.Runner("web-1")
		b.ok(err)
		kept, _ := r.Events.Since(0)
		last := kept[0].ID // the listener has read only the first
		b.steering.Open(web)
		b.steering.Open(web) // so that both stay
		time.Sleep(time.Second)
		b.restart()
		b.drain("web-2", false)
		b.drain("web-1", true)
		synctest.Wait()
		r, err = b.agent.crews.Runner("web-1")
		b.ok(err)
		news, _ := r.Events.Since(last)
		halted := false
		for _, e := range news {
			halted = halted || e.Kind == pando.EventHalted
		}
		if all, _ := r.Events.Since(0); !halted || len(news) != len(all) {
			t.Errorf("after %d the listener received %v of %v", last, news, all)
		}
	})
}

// partial publishes every table less a part.
type partial struct {
	pando.Steering
	no error
}

func (p partial) Publish(ctx context.Context, t pando.SteeringTable) error {
	return errors.Join(p.Steering.Publish(ctx, t), p.no)
}

// A tunnel that does not fit and a published port that another program has are in the answer.
func TestAHostSaysWhatItsTablesLeaveOut(t *testing.T) {
	for _, no := range []error{
		pando.Unreached(map[netip.Addr]error{netip.MustParseAddr("192.0.2.9"): errors.New("too narrow")}),
		&pando.TakenError{Port: pando.HostPort{Port: 9090}, Owner: "nginx"},
	} {
		onBench(t, func(b *bench) {
			b.front = partial{b.steering, no}
			b.restart()
			b.serving("web-1", 1)
			missing, err := b.agent.Applied(b.ctx, onlyWeb, b.world().Endpoints[web].Modified)
			if err != nil || !strings.Contains(missing, "web: "+no.Error()) {
				t.Errorf("with %v: %q, %v", no, missing, err)
			}
		})
	}
}
