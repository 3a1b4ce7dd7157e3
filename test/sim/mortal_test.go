package sim

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"pando.run/pando"
)

// errDead is the result of every call of a killed process.
var errDead = errors.New("killed")

// mortal is the border between one process and the outside. After the kill it blocks all calls of
// the process. A process can be killed at any step: just before a call has its effect, or just
// after it but before the result returns.
type mortal struct {
	mu    sync.Mutex
	left  int // calls until the kill, or 0 without one
	after bool
	dead  bool
	kill  context.CancelFunc
}

// doom kills the process at its nth next call.
func (m *mortal) doom(n int, after bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left, m.after = n, after
}

func (m *mortal) die() {
	m.mu.Lock()
	m.dead = true
	m.mu.Unlock()
	m.kill()
}

func (m *mortal) isDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// call lets one effect through.
func (m *mortal) call(effect func() error) error {
	m.mu.Lock()
	if m.dead {
		m.mu.Unlock()
		return errDead
	}
	last, after := m.left == 1, m.after
	m.left = max(0, m.left-1)
	m.mu.Unlock()
	if last && !after {
		m.die()
		return errDead
	}
	err := effect()
	if last {
		m.die()
	}
	if m.isDead() {
		return errDead
	}
	return err
}

type mortalRegistry struct {
	pando.Registry
	*mortal
}

func (r mortalRegistry) Commit(
	ctx context.Context, t pando.Txn,
) (at pando.StoreRevision, err error) {
	err = r.call(func() error { at, err = r.Registry.Commit(ctx, t); return err })
	return at, err
}

func (r mortalRegistry) Snapshot(
	ctx context.Context, prefix pando.Key,
) (s pando.Snapshot, err error) {
	err = r.call(func() error { s, err = r.Registry.Snapshot(ctx, prefix); return err })
	return s, err
}

func (r mortalRegistry) Join(
	ctx context.Context, h pando.Host, ttl time.Duration,
) (f pando.Fence, lost <-chan struct{}, err error) {
	err = r.call(func() error { f, lost, err = r.Registry.Join(ctx, h, ttl); return err })
	return f, lost, err
}

type mortalObjects struct {
	pando.Objects
	*mortal
}

func (o mortalObjects) Update(ctx context.Context, u pando.ObjectsUpdate) error {
	return o.call(func() error { return o.Objects.Update(ctx, u) })
}

type mortalSteering struct {
	pando.Steering
	*mortal
	look func(pando.SteeringTable) // runs on each table before it is published
}

func (s mortalSteering) Publish(ctx context.Context, t pando.SteeringTable) error {
	return s.call(func() error { s.look(t); return s.Steering.Publish(ctx, t) })
}

func (s mortalSteering) Withdraw(ctx context.Context, k pando.ServiceKey) error {
	return s.call(func() error {
		s.look(pando.SteeringTable{Service: k})
		return s.Steering.Withdraw(ctx, k)
	})
}

func (s mortalSteering) Connect(
	ctx context.Context, l pando.Link, p []pando.Port, v4, v6 netip.Addr,
) error {
	return s.call(func() error { return s.Steering.Connect(ctx, l, p, v4, v6) })
}

type mortalSandboxes struct {
	pando.Sandboxes
	*mortal
	started func(pando.Instance)
}

func (h mortalSandboxes) Start(
	ctx context.Context, s pando.SandboxSpec,
) (b pando.Sandbox, err error) {
	err = h.call(func() error {
		if b, err = h.Sandboxes.Start(ctx, s); err == nil {
			h.started(s.Instance)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return mortalSandbox{b, h.mortal}, nil
}

func (h mortalSandboxes) Prepare(ctx context.Context, s pando.SandboxSpec) error {
	return h.call(func() error { return h.Sandboxes.Prepare(ctx, s) })
}

func (h mortalSandboxes) Discard(i pando.InstanceID) {
	_ = h.call(func() error { h.Sandboxes.Discard(i); return nil })
}

func (h mortalSandboxes) Attach(ctx context.Context) ([]pando.Sandbox, error) {
	boxes, err := h.Sandboxes.Attach(ctx)
	for n, b := range boxes {
		boxes[n] = mortalSandbox{b, h.mortal}
	}
	return boxes, err
}

type mortalSandbox struct {
	pando.Sandbox
	*mortal
}

func (b mortalSandbox) Stop(ctx context.Context) error {
	return b.call(func() error { return b.Sandbox.Stop(ctx) })
}

func (b mortalSandbox) Remove(ctx context.Context) error {
	return b.call(func() error { return b.Sandbox.Remove(ctx) })
}

func (b mortalSandbox) Notify(ctx context.Context) error {
	return b.call(func() error { return b.Sandbox.Notify(ctx) })
}

func (b mortalSandbox) Pause(ctx context.Context) error {
	return b.call(func() error { return b.Sandbox.Pause(ctx) })
}

func (b mortalSandbox) Resume(ctx context.Context) error {
	return b.call(func() error { return b.Sandbox.Resume(ctx) })
}
