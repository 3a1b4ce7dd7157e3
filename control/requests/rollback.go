package requests

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/status"
	"pando.run/pando/lifecycle"
	"pando.run/pando/spec"
	"pando.run/pando/world"
)

// reasonBytesMax is the longest reason that an operator may give for a change of a rollout.
const reasonBytesMax = 400

// Rollback implements pando.Operators. It is an ordinary deploy of a stored spec.
func (c *desk) Rollback(
	ctx context.Context, s pando.ServiceKey, to int, reason string, by pando.Asker,
) (pando.ServiceStatus, error) {
	if err := checkReason(reason); err != nil {
		return pando.ServiceStatus{}, err
	}
	err := c.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		return c.rollback(ctx, w, s, to, reason, now, by)
	})
	if err != nil {
		return pando.ServiceStatus{}, fmt.Errorf("roll %s back: %w", s, err)
	}
	return c.statuses.Service(ctx, s)
}

func (c *desk) rollback(
	ctx context.Context, w *world.World, s pando.ServiceKey, to int, reason string, now time.Time,
	by pando.Asker,
) (pando.Txn, error) {
	old, ok := w.Services[s]
	if !ok {
		return pando.Txn{}, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	if done, err := settled(w, old.V, old.Modified, s, by); done || err != nil {
		return pando.Txn{}, err
	}
	r, err := lifecycle.RollbackTo(old.V, status.RevisionsOf(w, s), to, sameSpec)
	if err != nil {
		return pando.Txn{}, err
	}
	if err := spec.Check(r.Spec); err != nil { // an older build accepted it
		return pando.Txn{}, fmt.Errorf("revision %d: %w", r.Number, err)
	}
	text := fmt.Sprintf(", with the spec of revision %d", r.Number)
	if reason != "" {
		text += ": " + reason
	}
	again := pando.Revision{Service: s, Spec: r.Spec, At: now, By: by, Repeats: r.Number}
	return c.deploy(ctx, w, again, text)
}
