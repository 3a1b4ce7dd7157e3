package agent

import (
	"context"
	"time"

	"pando.run/pando"
)

// wire is the way of packets to an instance: its link and its place in the steering table.
type wire struct {
	*runner
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
func (r *wire) connect(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	svc, spec := r.described(i)
	r.a.payments.Charge(box.Link(), r.service.Tenant)
	err := r.a.Steering.Connect(ctx, box.Link(), spec.Ports, svc.VIP4, svc.VIP6)
	if err != nil && (r.unconnected == nil || err.Error() != r.unconnected.Error()) {
		r.a.Log.Error("connect an instance to steering: it is tried again",
			"instance", r.id, "error", err)
	}
	r.connected, r.tried, r.unconnected = err == nil, r.a.Clock.Now(), err
}

// connectAgain retries a failed connect, at most once per retryWait.
func (r *wire) connectAgain(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	if r.a.Clock.Now().Sub(r.tried) >= retryWait {
		r.connect(ctx, i, box)
	}
}

// inForce reports whether the table is in force that has the instance as its phase wants it. While
// the table cannot be published, inForce returns the error. The table wakes the runner.
func (r *wire) inForce() (bool, error) {
	if r.entry == nil || r.entry.phase != r.inst.Phase {
		r.leaveEntry()
		r.entry = &entry{phase: r.inst.Phase}
		r.entry.done, r.entry.stop = r.a.steering.InForce(r.service)
	}
	select {
	case <-r.entry.done:
		r.entry.inForce = true
		return true, nil
	default:
		return false, r.a.steering.Status(r.service).Err
	}
}

// wake returns the channel that ends the wait for a table, and nil if there is no such wait.
func (r *wire) wake() <-chan struct{} {
	if r.entry == nil || r.entry.inForce || r.entry.phase != r.inst.Phase {
		return nil
	}
	return r.entry.done
}

// leaveEntry ends the wait for a table.
func (r *wire) leaveEntry() {
	if r.entry != nil {
		r.entry.stop()
		r.entry = nil
	}
}

// awaitTable waits until the newest table was published or could not be.
func (r *wire) awaitTable(ctx context.Context) {
	tried, stop := r.a.steering.Tried(r.service)
	defer stop()
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// disconnect takes the link from the steering, after the table without it.
func (r *wire) disconnect(ctx context.Context, l pando.Link) {
	r.awaitTable(ctx)
	r.a.payments.Charge(l, "")
	if err := r.a.Steering.Disconnect(ctx, l); err != nil {
		r.a.Log.Warn("disconnect an instance from steering", "instance", r.id, "error", err)
	}
}
