package agent

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
func (r *runner) awaitSecrets(ctx context.Context, why error) time.Duration {
	reason := "its secrets are on the way from the server"
	if errors.Is(why, pando.ErrNotFound) {
		reason = "it waits for a secret: " + records.OneLine(why.Error(), records.EvidenceBytesMax)
	}
	if r.inst.Reason != reason {
		r.explain(reason)
	}
	return r.again(ctx, "bring the secrets of an instance", why)
}

// secretsSeen is the newest change of the secrets that each service here names. The agent's lock
// guards it.
type secretsSeen map[pando.ServiceKey]pando.StoreRevision

// renewed reports whether the secrets of a service have changed.
func (s secretsSeen) renewed(k pando.ServiceKey, now pando.StoreRevision) bool {
	was := s[k]
	if now == 0 {
		delete(s, k)
		return false
	}
	s[k] = now
	return was != now
}

// renewal is the work that brings new secrets to a running instance.
type renewal struct {
	running bool
	again   bool   // they changed once more meanwhile
	said    string // why the last attempt failed, as recorded; "": it did not
}

// secretsRetry is the wait before the next attempt to renew secrets.
const secretsRetry = 30 * time.Second

// renew brings the newest secrets to the instance. The sandbox compares them with those it has, so
// a renewal without a change has no effect.
func (r *runner) renew() {
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
	r.a.spawn(func(ctx context.Context) {
		changed, err := r.bringSecrets(ctx, spec, box)
		r.post(secretsBrought{changed, err})
	})
}

// bringSecrets gives a sandbox the newest secrets. It tries again until the server answers.
func (r *runner) bringSecrets(
	ctx context.Context, spec pando.Spec, box pando.Sandbox,
) ([]string, error) {
	signals := map[string]string{}
	for _, one := range spec.StoredSecrets {
		signals[one.Name] = one.OnChange
	}
	for wait := retryWait; ; wait = min(2*wait, retryWaitMax) {
		all, err := r.a.supplier.SecretsOf(ctx, r.id, spec)
		if err == nil {
			return box.Renew(ctx, all, signals)
		}
		if !errors.Is(err, pando.ErrUnavailable) {
			return nil, err
		}
		timer, stop := r.a.Clock.After(wait)
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
func (r *runner) renewed(ctx context.Context, m secretsBrought) {
	again, said := r.renewal.again, r.renewal.said
	r.renewal = renewal{}
	switch {
	case again:
		r.renew()
	case m.err != nil && ctx.Err() == nil:
		if r.renewal.said = m.err.Error(); r.renewal.said != said {
			r.a.Log.Warn("an instance has older secrets; they are tried again", "instance", r.id, "error",
				m.err)
			r.decide(ctx, pando.DecidedSecret, "it has older secrets: "+m.err.Error(), nil)
		}
		if errors.Is(m.err, pando.ErrUnsupported) {
			return // it began without secrets
		}
		r.a.spawn(func(ctx context.Context) {
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
