package requests

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
)

// Restart implements pando.Operators. The mark in the service's record names the instances that
// leave, so that a new leader continues.
func (c *desk) Restart(
	ctx context.Context, s pando.ServiceKey, ask pando.RestartAsk, by pando.Asker,
) (pando.ServiceStatus, error) {
	err := c.edit(ctx, s, by, func(svc *pando.Service, _ time.Time) (*pando.Decision, error) {
		if ask.Cancel {
			if svc.Renew == nil {
				return nil, nil
			}
			svc.Renew = nil
			return &pando.Decision{Kind: pando.DecidedRestart, By: by,
				Reason: "an operator ends the restart; the instances that are left stay"}, nil
		}
		return c.beginRestart(svc, ask.Instance, by)
	})
	if err != nil {
		return pando.ServiceStatus{}, err
	}
	return c.statuses.Service(ctx, s)
}

// beginRestart marks the instances of a service that leave. The caller holds the lock.
func (c *desk) beginRestart(
	svc *pando.Service, only pando.InstanceID, by pando.Asker,
) (*pando.Decision, error) {
	s := svc.ServiceKey
	spec, _ := c.mirror.World.SpecOf(s, svc.Target)
	next := pando.Renewal{}
	var due []pando.InstanceID
	for _, i := range c.mirror.World.Of(s) {
		next.Before = max(next.Before, c.mirror.World.CreatedOf(i.Key()))
		if (i.Warm || i.Capacity()) && (only == "" || i.ID == only) {
			due = append(due, i.ID)
		}
	}
	switch {
	case svc.Removing:
		return nil, fmt.Errorf("%w: %s is being removed", pando.ErrRefused, s)
	case spec.IsJob():
		return nil, fmt.Errorf("%w: %s is a job, whose instances end by themselves; `pando run %[2]s` "+
			"runs it again", pando.ErrRefused, s)
	case svc.Current != svc.Target && svc.Current != 0:
		return nil, fmt.Errorf("%w: a rollout of %s replaces its instances already; `pando rollout "+
			"status %[2]s` shows it", pando.ErrRefused, s)
	case only != "" && svc.Renew != nil && len(svc.Renew.Only) == 0:
		return nil, nil // the restart in progress has the instance too
	case len(due) == 0 && only != "":
		return nil, fmt.Errorf("instance %s of %s: %w, or it leaves already; `pando ps` lists the "+
			"instances", only, s, pando.ErrNotFound)
	case len(due) == 0:
		return nil, fmt.Errorf("%w: %s has no instance to restart", pando.ErrRefused, s)
	}
	reason := fmt.Sprintf("an operator restarts its %d instances", len(due))
	if only != "" {
		reason = fmt.Sprintf("an operator restarts %s", only)
		if svc.Renew != nil {
			next.Only = slices.Clone(svc.Renew.Only)
		}
		if !slices.Contains(next.Only, only) {
			next.Only = append(next.Only, only)
		}
		if len(next.Only) > pando.RenewalMax {
			return nil, fmt.Errorf("%w: %d instances of %s restart already; `pando restart %[3]s` restarts "+
				"all", pando.ErrRefused, pando.RenewalMax, s)
		}
	}
	svc.Renew = &next
	return &pando.Decision{Kind: pando.DecidedRestart, Instance: only, By: by, Reason: reason}, nil
}
