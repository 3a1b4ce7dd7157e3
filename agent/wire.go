package agent

import (
	"context"
	"time"

	"pando.run/pando"
)

// wire is the way of packets to an instance: its link and its place in the steering table.
type wire struct {
	connected   bool      // to the steering
	tried       time.Time // the time of the last attempt to connect
	unconnected error     // the error of that attempt
	entry       *entry    // the wait for the table; nil: none
}

// entry is the wait for the table that has the instance as its phase wants it.
type entry struct {
	phase   pando.Phase
	done    <-chan struct{}
	stop    func()
	inForce bool
}

// connect lets the instance take packets. It is idempotent. An instance that is not connected does
// not become ready; step tries again.
func (r *runner) connect(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	svc, spec := r.described(i)
	r.a.payments.Charge(box.Link(), r.service.Tenant)
	err := r.a.Steering.Connect(ctx, box.Link(), spec.Ports, svc.VIP4, svc.VIP6)
	if err != nil && (r.wire.unconnected == nil || err.Error() != r.wire.unconnected.Error()) {
		r.a.Log.Error("connect an instance to steering: it is tried again",
			"instance", r.id, "error", err)
	}
	r.wire.connected, r.wire.tried, r.wire.unconnected = err == nil, r.a.Clock.Now(), err
}

// connectAgain retries a failed connect, at most once per retryWait.
func (r *runner) connectAgain(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	if r.a.Clock.Now().Sub(r.wire.tried) >= retryWait {
		r.connect(ctx, i, box)
	}
}

// tableInForce reports whether the table is in force that has the instance as its phase wants it.
// While the table cannot be published, tableInForce returns the error. The table wakes the runner.
func (r *runner) tableInForce() (bool, error) {
	if r.wire.entry == nil || r.wire.entry.phase != r.inst.Phase {
		r.endTableWait()
		r.wire.entry = &entry{phase: r.inst.Phase}
		r.wire.entry.done, r.wire.entry.stop = r.a.crews.steering.InForce(r.service)
	}
	select {
	case <-r.wire.entry.done:
		r.wire.entry.inForce = true
		return true, nil
	default:
		return false, r.a.crews.steering.Status(r.service).Err
	}
}

// tableWake returns the channel that ends the wait for a table, and nil if there is no such wait.
func (r *runner) tableWake() <-chan struct{} {
	if r.wire.entry == nil || r.wire.entry.inForce || r.wire.entry.phase != r.inst.Phase {
		return nil
	}
	return r.wire.entry.done
}

// endTableWait ends the wait for a table.
func (r *runner) endTableWait() {
	if r.wire.entry != nil {
		r.wire.entry.stop()
		r.wire.entry = nil
	}
}

// awaitTable waits until the newest table was published or could not be.
func (r *runner) awaitTable(ctx context.Context) {
	tried, stop := r.a.crews.steering.Tried(r.service)
	defer stop()
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// disconnect takes the link from the steering, after the table without it.
func (r *runner) disconnect(ctx context.Context, l pando.Link) {
	r.awaitTable(ctx)
	r.a.payments.Charge(l, "")
	if err := r.a.Steering.Disconnect(ctx, l); err != nil {
		r.a.Log.Warn("disconnect an instance from steering", "instance", r.id, "error", err)
	}
}
