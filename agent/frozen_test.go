package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// newerRecord is the value of a record of a newer build.
var newerRecord = []byte(`{"layout":99,"value":{}}`)

// A record that this build cannot read ends nothing that runs: with the agent that saw the last
// value, and with a new agent.
func TestAnUnreadableInstanceRunsOn(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.serving("web-2", 1)
		b.write("web-1", "kept", true)
		var flows []pando.InstanceID
		for range 8 {
			flow, _ := b.steering.Open(web)
			flows = append(flows, flow)
		}
		was := b.world().Instances["web-1"].V
		b.registry.Overwrite(was.Key(), newerRecord)
		unharmed := func(when string) {
			t.Helper()
			b.pass(10 * time.Second)
			if n := len(b.sandboxes.All()); n != 2 || b.steering.Broken() != 0 {
				t.Errorf("%s: %d sandboxes, %d broken flows", when, n, b.steering.Broken())
			}
			for _, f := range flows {
				if b.steering.FlowsOf(f) == 0 {
					t.Errorf("%s: %s has lost its flows", when, f)
				}
			}
			if _, ok := b.steering.Open(web); !ok {
				t.Errorf("%s: nothing is steered any more", when)
			}
		}
		unharmed("the watch brought it")
		b.registry.Fail(pando.ErrCompacted)
		b.pass(time.Second)
		b.registry.Fail(nil)
		unharmed("a snapshot brought it")
		b.restart()
		unharmed("the agent is new")
		b.registry.Overwrite(was.Key(), mustEncode(t, was))
		b.restart()
		unharmed("it can be read again")
		b.phase("web-1", pando.PhaseInRotation)
		if log := b.text("web-1", "log"); log != "kept\n" {
			t.Errorf("its state is %q", log)
		}
	})
}

// An agent writes nothing over a record that it cannot read, although a step waits to be recorded.
func TestAnUnreadableRecordIsNotOverwritten(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		key := b.world().Instances["web-1"].V.Key()
		b.registry.Overwrite(key, newerRecord)
		synctest.Wait()
		b.sandboxes.All()[0].Crash()
		b.pass(time.Minute)
		now, err := b.registry.Snapshot(b.ctx, key)
		b.ok(err)
		if len(now.Records) != 1 || string(now.Records[0].Value) != string(newerRecord) {
			t.Errorf("the record is now %v", now.Records)
		}
	})
}

// The states of a service whose head cannot be read are neither merged away nor trimmed.
func TestAnUnreadableHeadDropsNoState(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		b.write("web-1", "kept", true)
		_, err := b.agent.self.StatePush(b.ctx, "web-1")
		b.ok(err)
		head := b.world().Heads[web].V
		b.registry.Overwrite(pando.HeadKey(web), newerRecord)
		b.restart()
		b.pass(20 * time.Minute)
		b.registry.Overwrite(pando.HeadKey(web), mustEncode(t, head))
		b.pass(time.Second)
		if log := b.merged("log"); log != "kept\n" {
			t.Errorf("main has the log %q", log)
		}
	})
}

// odd is a registry whose joins and reads fail with errors that no one expects.
type odd struct {
	pando.Registry
	left int
}

var errOdd = errors.New("rpc error: code = Internal desc = odd")

func (o *odd) fails() error {
	if o.left == 0 {
		return nil
	}
	o.left--
	return errOdd
}

func (o *odd) Join(
	ctx context.Context, h pando.Host, ttl time.Duration,
) (pando.Fence, <-chan struct{}, error) {
	if err := o.fails(); err != nil {
		return pando.Fence{}, nil, err
	}
	return o.Registry.Join(ctx, h, ttl)
}

func (o *odd) Snapshot(ctx context.Context, k pando.Key) (pando.Snapshot, error) {
	if err := o.fails(); err != nil {
		return pando.Snapshot{}, err
	}
	return o.Registry.Snapshot(ctx, k)
}

// An agent outlives every error of the store, at its start and after its lease is lost.
func TestAnAgentOutlivesOddErrorsOfTheStore(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		o := &odd{b.registry, 7}
		b.through = o
		b.start()
		b.pass(time.Minute)
		b.serving("web-1", 1)
		for n := range 3 {
			o.left = 3
			b.registry.Depose(b.fence())
			b.pass(time.Minute)
			if o.left > 0 || b.world().Hosts["h1"].V.Name == "" {
				t.Fatalf("round %d: the host did not join again (%d errors left)", n, o.left)
			}
		}
		b.phase("web-1", pando.PhaseInRotation)
	})
}

func (b *bench) fence() pando.Fence {
	b.Helper()
	k := pando.LeaderKey("host-h1")
	now, err := b.registry.Snapshot(b.ctx, k)
	if b.ok(err); len(now.Records) != 1 {
		b.Fatal(fmt.Errorf("no epoch of the host: %v", now.Records))
	}
	return pando.Fence{Key: k, Created: now.Records[0].Created}
}
