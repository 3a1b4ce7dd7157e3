package runner

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
)

// awaitSecrets returns the time before the next attempt to bring the secrets of an instance, and
// shows why it waits. A secret that is missing may be set at any time.
func (r *Runner) awaitSecrets(ctx context.Context, why error) time.Duration {
	reason := "its secrets are on the way from the server"
	if errors.Is(why, pando.ErrNotFound) {
		reason = "it waits for a secret: " + records.OneLine(why.Error(), records.EvidenceBytesMax)
	}
	if r.inst.Reason != reason {
		r.explain(reason)
	}
	return r.again(ctx, "bring the secrets of an instance", why)
}

// secretsRetry is the wait before the next attempt to renew secrets.
const secretsRetry = 30 * time.Second

// renew brings the newest secrets to the instance. The sandbox compares them with those it has, so
// a renewal without a change has no effect.
func (r *Runner) renew() {
	spec := r.spec()
	if r.box == nil || r.exited != nil || len(spec.StoredSecrets) == 0 {
		return
	}
	if r.renewal.running {
		r.renewal.again = true
		return
	}
	r.renewal = renewal{running: true, said: r.renewal.said}
	box := r.box
	r.host.Spawn(func(ctx context.Context) {
		changed, err := r.bringSecrets(ctx, spec, box)
		r.post(secretsBrought{changed, err})
	})
}

// bringSecrets gives a sandbox the newest secrets. It tries again until the server answers.
func (r *Runner) bringSecrets(
	ctx context.Context, spec pando.Spec, box pando.Sandbox,
) ([]string, error) {
	signals := map[string]string{}
	for _, one := range spec.StoredSecrets {
		signals[one.Name] = one.OnChange
	}
	for wait := RetryWait; ; wait = min(2*wait, RetryWaitMax) {
		all, err := r.host.Supplier.SecretsOf(ctx, r.ID, spec)
		if err == nil {
			return box.Renew(ctx, all, signals)
		}
		if !errors.Is(err, pando.ErrUnavailable) {
			return nil, err
		}
		timer, stop := r.host.Clock.After(wait)
		select {
		case <-ctx.Done():
		case <-r.ended:
		case <-timer:
			continue
		}
		stop()
		return nil, err
	}
}

// renewed records the end of a renewal.
func (r *Runner) renewed(ctx context.Context, m secretsBrought) {
	again, said := r.renewal.again, r.renewal.said
	r.renewal = renewal{}
	switch {
	case again:
		r.renew()
	case m.err != nil && ctx.Err() == nil:
		if r.renewal.said = m.err.Error(); r.renewal.said != said {
			r.host.Log.Warn("an instance has older secrets; they are tried again", "instance", r.ID, "error",
				m.err)
			r.decide(ctx, pando.DecidedSecret, "it has older secrets: "+m.err.Error(), nil)
		}
		if errors.Is(m.err, pando.ErrUnsupported) {
			return // it began without secrets
		}
		r.host.Spawn(func(ctx context.Context) {
			if r.pauseFor(ctx, secretsRetry) == nil {
				r.post(secretsChanged{})
			}
		})
	case len(m.changed) > 0:
		slices.Sort(m.changed)
		r.decide(ctx, pando.DecidedSecret, "it has new secrets: "+
			strings.Join(m.changed, ", "), nil)
	}
}
