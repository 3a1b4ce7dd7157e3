package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// veil is the value of an environment variable in answers to the other hosts of a cluster.
const veil = "(hidden: this host may not deploy)"

// veiled hides the environments of services and the digests of snapshots from members that may not
// deploy. It changes answers to
// requests that passed ForMembers, and no others.
type veiled struct{ access.Operators }

type memberKey struct{}

// fromMember marks a request of another host.
func fromMember(r *http.Request, m pando.Member) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), memberKey{}, m))
}

// callerOf returns the member that makes a request; ok is false for an operator of this host.
func callerOf(ctx context.Context) (m pando.Member, ok bool) {
	m, ok = ctx.Value(memberKey{}).(pando.Member)
	return m, ok
}

// isVeiled reports whether the caller sees no values of environments.
func isVeiled(ctx context.Context) bool {
	m, ok := callerOf(ctx)
	return ok && !m.Has(pando.RightDeploy)
}

// veilSpec returns a spec without the values of its environment.
func veilSpec(s pando.Spec) pando.Spec {
	env := make(map[string]string, len(s.Environment))
	for k := range s.Environment {
		env[k] = veil
	}
	if len(env) > 0 {
		s.Environment = env
	}
	return s
}

func veilStatus(
	ctx context.Context, st pando.ServiceStatus, err error,
) (pando.ServiceStatus, error) {
	if st.Spec != nil && isVeiled(ctx) {
		spec := veilSpec(*st.Spec)
		st.Spec = &spec
	}
	return st, err
}

// Service implements pando.Operators.
func (v veiled) Service(ctx context.Context, s pando.ServiceKey) (pando.ServiceStatus, error) {
	st, err := v.Operators.Service(ctx, s)
	return veilStatus(ctx, st, err)
}

// Pin implements pando.Operators.
func (v veiled) Pin(
	ctx context.Context, s pando.ServiceKey, instances int, keep time.Duration, by pando.Asker,
) (pando.ServiceStatus, error) {
	st, err := v.Operators.Pin(ctx, s, instances, keep, by)
	return veilStatus(ctx, st, err)
}

// Unpin implements pando.Operators.
func (v veiled) Unpin(
	ctx context.Context, s pando.ServiceKey, by pando.Asker,
) (pando.ServiceStatus, error) {
	st, err := v.Operators.Unpin(ctx, s, by)
	return veilStatus(ctx, st, err)
}

// Revisions implements pando.Operators.
func (v veiled) Revisions(ctx context.Context, s pando.ServiceKey) ([]pando.Revision, error) {
	all, err := v.Operators.Revisions(ctx, s)
	if !isVeiled(ctx) {
		return all, err
	}
	out := make([]pando.Revision, len(all))
	for n, r := range all {
		r.Spec = veilSpec(r.Spec)
		out[n] = r
	}
	return out, err
}

// Watch implements pando.Operators.
func (v veiled) Watch(ctx context.Context, after pando.StoreRevision) <-chan pando.Change {
	in := v.Operators.Watch(ctx, after)
	if !isVeiled(ctx) {
		return in
	}
	out := make(chan pando.Change)
	go func() {
		defer close(out)
		for c := range in {
			if r, ok := c.Value.(pando.Revision); ok {
				r.Spec = veilSpec(r.Spec)
				c.Value = r
			}
			select {
			case out <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// veiledDigits is the length of a snapshot's digest for a member that may not deploy. It names the
// snapshot in requests, and it is no digest of a blob.
const veiledDigits = 12

func veilDigest(text string) string {
	text = strings.TrimPrefix(text, "sha256:")
	return text[:min(len(text), veiledDigits)]
}

// Snapshots implements pando.Operators. The digest of a snapshot is for hosts that may deploy.
func (v veiled) Snapshots(
	ctx context.Context, s pando.ServiceKey,
) ([]pando.SnapshotStatus, error) {
	all, err := v.Operators.Snapshots(ctx, s)
	if isVeiled(ctx) {
		for n := range all {
			all[n].Digest = veilDigest(all[n].Digest)
		}
	}
	return all, err
}
