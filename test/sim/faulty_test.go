package sim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// faults makes the calls of one process fail at random, before their effect or after it. After it,
// the effect is there, and its result is lost. Each method has a share of failing calls.
type faults struct {
	c   *cluster
	who string

	mu    sync.Mutex
	calls map[string]uint64 // so far, by method
}

// shares are the shares of failing calls. A run draws one for each method of each process.
var shares = []float64{0, 0.03, 0.2, 0.6}

// causes are the errors of a kernel and of a disk.
var causes = []error{
	syscall.EADDRINUSE, syscall.EAGAIN, syscall.ENOSPC, syscall.EIO, syscall.EBUSY, syscall.ENOMEM,
}

// storeErrors are the errors of a store that did not write, or lost the answer of a write.
var storeErrors = []error{pando.ErrUnavailable, context.DeadlineExceeded, syscall.EIO}

// faultsOf returns the faults of a process.
func (c *cluster) faultsOf(process string) *faults {
	return &faults{c: c, who: process, calls: map[string]uint64{}}
}

// draw decides about one call: whether it fails, and whether its effect happens nevertheless.
func (f *faults) draw(method string, of []error) (err error, after bool) {
	if !f.c.faulty || f.c.isQuiet() {
		return nil, false
	}
	f.mu.Lock()
	f.calls[method]++
	n := f.calls[method]
	f.mu.Unlock()
	name := "fault " + f.who + " " + method
	share := shares[f.c.dice(name, 0).IntN(len(shares))]
	dice := f.c.dice(name, n)
	if dice.Float64() >= share {
		return nil, false
	}
	f.c.countFault(method)
	cause := of[dice.IntN(len(of))]
	return fmt.Errorf("%s: a fault of the test: %w", method, cause), dice.IntN(2) == 0
}

// call makes a call that may fail before or after its effect.
func (f *faults) call(method string, effect func() error) error {
	err, after := f.draw(method, causes)
	if err != nil && !after {
		return err
	}
	return errors.Join(effect(), err)
}

// refuse makes a call that may fail before its effect only. Its error promises that nothing is
// left.
func (f *faults) refuse(method string, effect func() error) error {
	if err, _ := f.draw(method, causes); err != nil {
		return err
	}
	return effect()
}

// countFault counts the faults of a run by method.
func (c *cluster) countFault(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[method]++
}

// faultRunsDefault is the number of runs with failing drivers at the gate.
const faultRunsDefault = 6

// TestDriversThatFail runs the cluster while the calls of its drivers fail at random: the store,
// the steering, the sandboxes, the objects and the way to other hosts. Every second run also kills
// processes and instances. All rules hold, and every acknowledged request is true.
func TestDriversThatFail(t *testing.T) {
	first := number(t, "PANDO_SEED", 0)
	runs := number(t, "PANDO_RUNS", faultRunsDefault)
	if os.Getenv("PANDO_SEED") != "" {
		runs = 1
	}
	seen := map[string]int{}
	for seed := first; seed < first+runs; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			printSeed(t, seed)
			synctest.Test(t, func(t *testing.T) {
				run(t, seed, func(c *cluster) { c.faulty, c.lean, c.faults = true, seed%2 == 0, seen })
			})
		})
	}
	t.Logf("failed calls: %v", seen)
	if runs < faultRunsDefault || t.Failed() {
		return
	}
	for _, method := range []string{
		"Commit", "Snapshot", "Watch", "Publish", "Connect", "Start", "Stop", "Remove", "Update",
	} {
		if seen[method] == 0 {
			t.Errorf("no call of %s failed in %d runs", method, runs)
		}
	}
}

// faultyRegistry fails with the errors of a store. A commit may happen and lose its answer.
type faultyRegistry struct {
	pando.Registry
	*faults
}

func (r faultyRegistry) Commit(
	ctx context.Context, t pando.Txn,
) (pando.StoreRevision, error) {
	err, after := r.draw("Commit", append([]error{pando.ErrStoreFull}, storeErrors...))
	if err != nil && (!after || errors.Is(err, pando.ErrStoreFull)) {
		return 0, err
	}
	at, cause := r.Registry.Commit(ctx, t)
	if cause != nil || err != nil {
		return 0, errors.Join(cause, err)
	}
	return at, nil
}

func (r faultyRegistry) Snapshot(
	ctx context.Context, prefix pando.Key,
) (s pando.Snapshot, err error) {
	if err, _ := r.draw("Snapshot", storeErrors); err != nil {
		return pando.Snapshot{}, err
	}
	return r.Registry.Snapshot(ctx, prefix)
}

// Watch ends with an error at a random batch: the store is away, or it has compacted its history.
func (r faultyRegistry) Watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	if !r.c.faulty {
		return r.Registry.Watch(ctx, prefix, after)
	}
	out := make(chan pando.Batch)
	ctx, cancel := context.WithCancel(ctx)
	in := r.Registry.Watch(ctx, prefix, after)
	send := func(b pando.Batch) bool {
		select {
		case out <- b:
			return true
		case <-ctx.Done():
			return false
		}
	}
	r.c.go_(func() {
		defer close(out)
		defer func() { // the driver's goroutine sends until it sees the end
			cancel()
			for range in {
			}
		}()
		for b := range in {
			err, _ := r.draw("Watch", []error{pando.ErrUnavailable, pando.ErrCompacted})
			if err != nil {
				send(pando.Batch{Revision: after, Err: err})
				return
			}
			after = b.Revision
			if !send(b) {
				return
			}
		}
	})
	return out
}

func (r faultyRegistry) Lead(
	ctx context.Context, role, candidate string,
) (pando.Fence, <-chan struct{}, error) {
	if err, _ := r.draw("Lead", storeErrors); err != nil {
		return pando.Fence{}, nil, err
	}
	return r.Registry.Lead(ctx, role, candidate)
}

func (r faultyRegistry) Join(
	ctx context.Context, h pando.Host, ttl time.Duration,
) (pando.Fence, <-chan struct{}, error) {
	if err, _ := r.draw("Join", storeErrors); err != nil {
		return pando.Fence{}, nil, err
	}
	return r.Registry.Join(ctx, h, ttl)
}

// faultyObjects fails like a file on a bad or a full disk.
type faultyObjects struct {
	pando.Objects
	*faults
}

func (o faultyObjects) Object(
	id pando.ObjectID,
) (kind pando.ObjectKind, body []byte, err error) {
	err = o.refuse("Object", func() error { kind, body, err = o.Objects.Object(id); return err })
	return kind, body, err
}

func (o faultyObjects) Ref(name string) (id pando.ObjectID, err error) {
	err = o.refuse("Ref", func() error { id, err = o.Objects.Ref(name); return err })
	return id, err
}

func (o faultyObjects) Refs(prefix string) (all map[string]pando.ObjectID, err error) {
	err = o.refuse("Refs", func() error { all, err = o.Objects.Refs(prefix); return err })
	return all, err
}

func (o faultyObjects) Update(ctx context.Context, u pando.ObjectsUpdate) error {
	return o.call("Update", func() error { return o.Objects.Update(ctx, u) })
}

func (o faultyObjects) Prune(
	ctx context.Context, live func() (func(pando.ObjectID) bool, error),
) (n int, err error) {
	err = o.call("Prune", func() error { n, err = o.Objects.Prune(ctx, live); return err })
	return n, err
}

// faultySteering fails like a kernel without memory, or with a device that is busy.
type faultySteering struct {
	pando.Steering
	*faults
}

func (s faultySteering) Publish(ctx context.Context, t pando.SteeringTable) error {
	return s.call("Publish", func() error { return s.Steering.Publish(ctx, t) })
}

func (s faultySteering) Withdraw(ctx context.Context, k pando.ServiceKey) error {
	return s.call("Withdraw", func() error { return s.Steering.Withdraw(ctx, k) })
}

func (s faultySteering) Neighbours(ctx context.Context, h []pando.Host) error {
	return s.call("Neighbours", func() error { return s.Steering.Neighbours(ctx, h) })
}

func (s faultySteering) Published(ctx context.Context) (all []pando.ServiceKey, err error) {
	err = s.refuse("Published", func() error { all, err = s.Steering.Published(ctx); return err })
	return all, err
}

func (s faultySteering) Connect(
	ctx context.Context, l pando.Link, p []pando.Port, v4, v6 netip.Addr,
) error {
	return s.call("Connect", func() error { return s.Steering.Connect(ctx, l, p, v4, v6) })
}

func (s faultySteering) Disconnect(ctx context.Context, l pando.Link) error {
	return s.call("Disconnect", func() error { return s.Steering.Disconnect(ctx, l) })
}

func (s faultySteering) Score(ctx context.Context, k pando.ServiceKey, r pando.Ranking) error {
	return s.call("Score", func() error { return s.Steering.Score(ctx, k, r) })
}

func (s faultySteering) Sweep(ctx context.Context) (r pando.SweepReport, err error) {
	err = s.refuse("Sweep", func() error { r, err = s.Steering.Sweep(ctx); return err })
	return r, err
}

func (s faultySteering) Ends(
	ctx context.Context, k pando.ServiceKey, i pando.InstanceID,
) (n uint64, err error) {
	err = s.refuse("Ends", func() error { n, err = s.Steering.Ends(ctx, k, i); return err })
	return n, err
}

// faultySandboxes fails like a bind, a mount or a fork.
type faultySandboxes struct {
	pando.Sandboxes
	*faults
}

func (h faultySandboxes) Start(
	ctx context.Context, s pando.SandboxSpec,
) (b pando.Sandbox, err error) {
	err = h.refuse("Start", func() error { b, err = h.Sandboxes.Start(ctx, s); return err })
	if err != nil {
		return nil, err
	}
	return faultySandbox{b, h.faults}, nil
}

func (h faultySandboxes) Prepare(ctx context.Context, s pando.SandboxSpec) error {
	return h.refuse("Prepare", func() error { return h.Sandboxes.Prepare(ctx, s) })
}

func (h faultySandboxes) Attach(ctx context.Context) ([]pando.Sandbox, error) {
	boxes, err := h.Sandboxes.Attach(ctx)
	for n, b := range boxes {
		boxes[n] = faultySandbox{b, h.faults}
	}
	return boxes, err
}

// faultySandbox fails like the shim of one instance.
type faultySandbox struct {
	pando.Sandbox
	*faults
}

func (b faultySandbox) Stop(ctx context.Context) error {
	return b.call("Stop", func() error { return b.Sandbox.Stop(ctx) })
}

func (b faultySandbox) Remove(ctx context.Context) error {
	return b.call("Remove", func() error { return b.Sandbox.Remove(ctx) })
}

func (b faultySandbox) Notify(ctx context.Context) error {
	return b.call("Notify", func() error { return b.Sandbox.Notify(ctx) })
}

func (b faultySandbox) Pause(ctx context.Context) error {
	return b.call("Pause", func() error { return b.Sandbox.Pause(ctx) })
}

func (b faultySandbox) Resume(ctx context.Context) error {
	return b.call("Resume", func() error { return b.Sandbox.Resume(ctx) })
}

func (b faultySandbox) Flows(ctx context.Context) (n int, err error) {
	err = b.refuse("Flows", func() error { n, err = b.Sandbox.Flows(ctx); return err })
	return n, err
}

func (b faultySandbox) Usage(ctx context.Context) (u pando.Usage, err error) {
	err = b.refuse("Usage", func() error { u, err = b.Sandbox.Usage(ctx); return err })
	return u, err
}

// faultyPeers fails like a network.
type faultyPeers struct {
	pando.Peers
	*faults
}

func (p faultyPeers) Applied(
	ctx context.Context, h pando.Host, of []pando.ServiceKey, at pando.StoreRevision,
) (missing string, err error) {
	err = p.call("Applied", func() error {
		missing, err = p.Peers.Applied(ctx, h, of, at)
		return err
	})
	return missing, err
}
