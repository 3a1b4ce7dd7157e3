package runner

import (
	"context"

	"pando.run/pando"
)

// connect lets the instance take packets. It is idempotent. An instance that is not connected does
// not become ready; step tries again.
func (r *Runner) connect(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	svc, spec := r.described(i)
	r.host.Payments.Charge(box.Link(), r.Service.Tenant)
	err := r.host.Steering.Connect(ctx, box.Link(), spec.Ports, svc.VIP4, svc.VIP6)
	if err != nil && (r.wire.unconnected == nil || err.Error() != r.wire.unconnected.Error()) {
		r.host.Log.Error("connect an instance to steering: it is tried again",
			"instance", r.ID, "error", err)
	}
	r.wire.connected, r.wire.tried, r.wire.unconnected = err == nil, r.host.Clock.Now(), err
}

// connectAgain retries a failed connect, at most once per RetryWait.
func (r *Runner) connectAgain(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	if r.host.Clock.Now().Sub(r.wire.tried) >= RetryWait {
		r.connect(ctx, i, box)
	}
}

// tableInForce reports whether the table is in force that has the instance as its phase wants it.
// While the table cannot be published, tableInForce returns the error. The table wakes the runner.
func (r *Runner) tableInForce() (bool, error) {
	if r.wire.entry == nil || r.wire.entry.phase != r.inst.Phase {
		r.endTableWait()
		r.wire.entry = &entry{phase: r.inst.Phase}
		r.wire.entry.done, r.wire.entry.stop = r.host.Tables.InForce(r.Service)
	}
	select {
	case <-r.wire.entry.done:
		r.wire.entry.inForce = true
		return true, nil
	default:
		return false, r.host.Tables.Status(r.Service).Err
	}
}

// tableWake returns the channel that ends the wait for a table, and nil if there is no such wait.
func (r *Runner) tableWake() <-chan struct{} {
	if r.wire.entry == nil || r.wire.entry.inForce || r.wire.entry.phase != r.inst.Phase {
		return nil
	}
	return r.wire.entry.done
}

// endTableWait ends the wait for a table.
func (r *Runner) endTableWait() {
	if r.wire.entry != nil {
		r.wire.entry.stop()
		r.wire.entry = nil
	}
}

// awaitTable waits until the newest table was published or could not be.
func (r *Runner) awaitTable(ctx context.Context) {
	tried, stop := r.host.Tables.Tried(r.Service)
	defer stop()
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// disconnect takes the link from the steering, after the table without it.
func (r *Runner) disconnect(ctx context.Context, l pando.Link) {
	r.awaitTable(ctx)
	r.host.Payments.Charge(l, "")
	if err := r.host.Steering.Disconnect(ctx, l); err != nil {
		r.host.Log.Warn("disconnect an instance from steering", "instance", r.ID, "error", err)
	}
}
