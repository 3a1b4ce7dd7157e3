package requests

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/status"
	"pando.run/pando/lifecycle"
	"pando.run/pando/spec"
	"pando.run/pando/spec/span"
	"pando.run/pando/world"
)

// Rollout implements pando.Rollouts.
func (c *desk) Rollout(
	_ context.Context, s pando.ServiceKey,
) (pando.RolloutStatus, error) {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	v, ok := c.mirror.World.Services[s]
	if !ok {
		return pando.RolloutStatus{}, fmt.Errorf("service %s: %w; `pando status` lists the services",
			s, pando.ErrNotFound)
	}
	out := pando.RolloutStatus{
		Service: s, From: v.V.Current, To: v.V.Target, Rolling: v.V.Target != v.V.Current &&
			v.V.Current != 0, Trial: v.V.Trial,
	}
	if d, ok := decide.About(c.mirror.World, s, c.mirror.Clock.Now(), c.mirror.IDs); ok && out.Rolling {
		d.Progress(&out)
	}
	for _, r := range status.RevisionsOf(c.mirror.World, s) { // the newest one that is not on its way
		if r.State != pando.RevisionRolling && r.State != pando.RevisionRetired &&
			(r.Number > 1 || r.Reason != "") {
			out.Outcome = &pando.RolloutOutcome{Revision: r.Number, State: r.State, Reason: r.Reason}
		}
	}
	return out, nil
}

// PauseRollout implements pando.Rollouts.
func (c *desk) PauseRollout(
	ctx context.Context, s pando.ServiceKey, reason string, by pando.Asker,
) (pando.RolloutStatus, error) {
	may := func(*pando.Service) error { return nil } // a pause brings nothing into force
	return c.turnRollout(ctx, s, reason, by, may, func(t *pando.Trial, now time.Time) *pando.Decision {
		if t.Paused != nil {
			return nil
		}
		t.Paused = &pando.Pause{By: by, At: now, Reason: reason}
		return &pando.Decision{Kind: pando.DecidedPause, By: by, Reason: because(
			"the rollout is paused", reason)}
	})
}

// ResumeRollout implements pando.Rollouts.
func (c *desk) ResumeRollout(
	ctx context.Context, s pando.ServiceKey, by pando.Asker,
) (pando.RolloutStatus, error) {
	may := func(svc *pando.Service) error { return mayUse(ctx, c.mirror.World, s, svc.Target) }
	return c.turnRollout(ctx, s, "", by, may, func(t *pando.Trial, now time.Time) *pando.Decision {
		if t.Paused == nil {
			return nil
		}
		length := now.Sub(c.mirror.World.Local(s, t.Paused.At)) // another server may have paused it
		t.PausedSeconds += length.Seconds()
		t.Paused = nil
		return &pando.Decision{Kind: pando.DecidedResume, By: by, Reason: fmt.Sprintf(
			"the rollout continues after a pause of %s", span.Text(length.Round(time.Second)))}
	})
}

// EndDrains implements pando.Rollouts.
func (c *desk) EndDrains(ctx context.Context, s pando.ServiceKey, by pando.Asker) error {
	err := c.edit(ctx, s, by, func(svc *pando.Service, now time.Time) (*pando.Decision, error) {
		drains := len(drainingOf(c.mirror.World, s))
		if drains == 0 && !svc.Removing {
			return nil, fmt.Errorf("%w: no instance of %s drains; `pando ps` shows its instances",
				pando.ErrRefused, s)
		}
		svc.EndNow = svc.Removing
		return &pando.Decision{Kind: pando.DecidedDrainEnd, By: by, Reason: fmt.Sprintf(
			"an operator ends the drains of %d instances now", drains)}, nil
	})
	for more := true; more && err == nil; {
		err = c.change(ctx, func(w *world.World, _ time.Time) (t pando.Txn, _ error) {
			more = false
			for _, v := range drainingOf(w, s) {
				if v.V.EndNow {
					continue
				}
				if more = len(t.Put) == decide.OperationsMax; more {
					break
				}
				t.If = append(t.If, v.If())
				v.V.EndNow = true
				t.Put = append(t.Put, v.V)
			}
			return t, nil
		})
	}
	return err
}

// drainingOf returns the draining instances of a service, oldest first.
func drainingOf(w *world.World, s pando.ServiceKey) (out []world.Versioned[pando.Instance]) {
	for _, i := range w.Of(s) {
		if i.Phase == pando.PhaseDraining {
			out = append(out, w.Instances[i.ID])
		}
	}
	return out
}

// turnRollout changes the trial of the rollout in progress. A nil decision means that nothing
// changes.
func (c *desk) turnRollout(
	ctx context.Context, s pando.ServiceKey, reason string, by pando.Asker,
	may func(*pando.Service) error, change func(*pando.Trial, time.Time) *pando.Decision,
) (pando.RolloutStatus, error) {
	if err := checkReason(reason); err != nil {
		return pando.RolloutStatus{}, err
	}
	err := c.edit(ctx, s, by, func(svc *pando.Service, now time.Time) (*pando.Decision, error) {
		if svc.Current == 0 || svc.Target == svc.Current {
			return nil, fmt.Errorf("%w: no rollout of %s is in progress; `pando rollout status %s` shows "+
				"the newest one", pando.ErrRefused, s, s)
		}
		if err := may(svc); err != nil {
			return nil, err
		}
		trial := decide.TrialOf(*svc)
		d := change(&trial, now)
		svc.Trial = &trial
		return d, nil
	})
	if err != nil {
		return pando.RolloutStatus{}, err
	}
	return c.Rollout(ctx, s)
}

// UndoRollout implements pando.Rollouts.
func (c *desk) UndoRollout(
	ctx context.Context, s pando.ServiceKey, reason string, by pando.Asker,
) (pando.ServiceStatus, error) {
	if err := checkReason(reason); err != nil {
		return pando.ServiceStatus{}, err
	}
	err := c.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		svc := w.Services[s].V
		if svc.Current == 0 || svc.Target == svc.Current || svc.Removing {
			return c.rollback(ctx, w, s, 0, reason, now, by)
		}
		return c.undo(ctx, w, s, reason, now, by)
	})
	if err != nil {
		return pando.ServiceStatus{}, fmt.Errorf("undo the rollout of %s: %w", s, err)
	}
	return c.statuses.Service(ctx, s)
}

// undo makes the current revision the target again. The loop then drains the new instances.
func (c *desk) undo(
	ctx context.Context, w *world.World, s pando.ServiceKey, reason string, now time.Time,
	by pando.Asker,
) (pando.Txn, error) {
	old := w.Services[s]
	if err := mayUse(ctx, w, s, old.V.Current); err != nil {
		return pando.Txn{}, err
	}
	if err := w.Frozen(s); err != nil {
		return pando.Txn{}, err
	}
	if done, err := settled(w, old.V, old.Modified, s, by); done || err != nil {
		return pando.Txn{}, err
	}
	svc := old.V
	failed, text := svc.Target, because(fmt.Sprintf("undone by %s", by), reason)
	svc.Target, svc.Trial = svc.Current, nil // Rolling stays: see pando.Service
	t := pando.Txn{If: []pando.Condition{old.If()}, Put: []pando.Stored{svc, pando.Decision{
		ID: c.mirror.IDs.Sequential(now), Service: s, Kind: pando.DecidedRollback, By: by, At: now,
		Reason: fmt.Sprintf("back to revision %d: %s", svc.Current, text),
		Inputs: map[string]float64{"from": float64(failed), "to": float64(svc.Current)},
	}}}
	if r, ok := w.Revisions[s][failed]; ok {
		r.V.State, r.V.Reason = pando.RevisionFailed, text
		t.Put = append(t.Put, r.V)
	}
	return t, nil
}

// because adds the reason that an operator gave to a text.
func because(text, reason string) string {
	if reason == "" {
		return text
	}
	return text + ": " + reason
}

// checkReason refuses a reason that is too long for a record.
func checkReason(reason string) error {
	if len(reason) > reasonBytesMax {
		return fmt.Errorf("%w: the reason has %d bytes, at most %d",
			pando.ErrTooLarge, len(reason), reasonBytesMax)
	}
	return nil
}

// Fits implements pando.Operators.
func (c *desk) Fits(_ context.Context, s pando.ServiceKey) ([]pando.HostFit, error) {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	d, ok := decide.About(c.mirror.World, s, c.mirror.Clock.Now(), c.mirror.IDs)
	if !ok {
		return nil, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	return d.Fits(), nil
}

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

// reasonBytesMax is the longest reason that an operator may give for a change of a rollout.
const reasonBytesMax = 400
