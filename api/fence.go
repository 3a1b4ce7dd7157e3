package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// fenced keeps the callers with a tenant's token within their tenant. It changes requests that
// passed ForTenants, and no others.
type fenced struct{ access.Operators }

// fromTenant marks a request with a token of a tenant.
func fromTenant(r *http.Request, t access.Token) *http.Request {
	return r.WithContext(access.WithToken(r.Context(), t))
}

// within returns the values of the caller's tenant.
func within[T any](ctx context.Context, all []T, err error, of func(T) pando.Tenant) ([]T, error) {
	t, ok := access.TokenOf(ctx)
	if !ok || err != nil {
		return all, err
	}
	out := []T{}
	for _, one := range all {
		if of(one) == t.Tenant {
			out = append(out, one)
		}
	}
	return out, nil
}

// foreign returns the error of a request about another tenant, or nil.
func foreign(ctx context.Context, of pando.Tenant) error {
	if t, ok := access.TokenOf(ctx); ok && t.Tenant != of {
		return fmt.Errorf("%w: the token %s is of tenant %s and not of %s", pando.ErrForbidden,
			t.TokenKey, t.Tenant, of)
	}
	return nil
}

// Services implements pando.Operators.
func (f fenced) Services(ctx context.Context) ([]pando.ServiceStatus, error) {
	all, err := f.Operators.Services(ctx)
	return within(ctx, all, err, func(s pando.ServiceStatus) pando.Tenant { return s.Tenant })
}

// Stats implements pando.Operators.
func (f fenced) Stats(ctx context.Context, s pando.ServiceKey) ([]pando.InstanceUsage, error) {
	all, err := f.Operators.Stats(ctx, s)
	return within(ctx, all, err, func(u pando.InstanceUsage) pando.Tenant { return u.Service.Tenant })
}

// Steering implements pando.Operators. A token sees how many hosts have confirmed, without names
// and reasons.
func (f fenced) Steering(
	ctx context.Context, of []pando.ServiceKey, wait time.Duration,
) ([]pando.HostSteering, error) {
	all, err := f.Operators.Steering(ctx, of, wait)
	if _, ok := access.TokenOf(ctx); ok {
		for n := range all {
			all[n].Host, all[n].Reason = "", ""
		}
	}
	return all, err
}

// Secrets implements pando.Operators.
func (f fenced) Secrets(ctx context.Context) ([]pando.SecretStatus, error) {
	all, err := f.Operators.Secrets(ctx)
	return within(ctx, all, err, func(s pando.SecretStatus) pando.Tenant { return s.Tenant })
}

// Tenants implements pando.Operators.
func (f fenced) Tenants(ctx context.Context) ([]access.TenantStatus, error) {
	all, err := f.Operators.Tenants(ctx)
	return within(ctx, all, err, func(t access.TenantStatus) pando.Tenant { return t.Tenant })
}

// Hosts implements pando.Operators.
func (f fenced) Hosts(ctx context.Context) ([]pando.HostStatus, error) {
	if t, ok := access.TokenOf(ctx); ok {
		return nil, fmt.Errorf("%w: the token %s sees no hosts", pando.ErrForbidden, t.TokenKey)
	}
	return f.Operators.Hosts(ctx)
}

// Deploy implements pando.Operators. A spec without a tenant is of the caller's. An operator's word
// admits a registry inside the network, a token's does not.
func (f fenced) Deploy(
	ctx context.Context, s pando.Spec, by pando.Asker,
) (pando.ServiceStatus, error) {
	t, ok := access.TokenOf(ctx)
	if s.Image.Inside = !ok && s.Image.Reference != "" && !s.Image.OfFiles(); !ok {
		return f.Operators.Deploy(ctx, s, by)
	}
	if s.Tenant == "" || s.Tenant == pando.DefaultTenant {
		s.Tenant = t.Tenant
	}
	if err := foreign(ctx, s.Tenant); err != nil {
		return pando.ServiceStatus{}, err
	}
	// Control checks this again where the spec takes effect. Here it comes before the server reads
	// images and bundles for the spec.
	if err := access.MayUseHosts(ctx, s); err != nil {
		return pando.ServiceStatus{}, err
	}
	// The registry alone chooses the bytes of an image: a digest could be that of another tenant.
	s.Image.Digest, s.Image.Host, s.Image.Gave = "", "", nil
	s.Bundle.Digest, s.Bundle.Host = "", ""
	return f.Operators.Deploy(ctx, s, by)
}

// Watch implements pando.Operators. A commit of other tenants sends its end alone, so that the
// caller can resume.
func (f fenced) Watch(ctx context.Context, after pando.StoreRevision) <-chan pando.Change {
	in := f.Operators.Watch(ctx, after)
	t, ok := access.TokenOf(ctx)
	if !ok {
		return in
	}
	out := make(chan pando.Change)
	go func() {
		defer close(out)
		for c := range in {
			if s, named := c.Key.Service(); c.Err == nil && c.Kind != pando.KindBookmark &&
				(!named || s.Tenant != t.Tenant) {
				if c.More {
					continue
				}
				c = pando.Change{Revision: c.Revision, Kind: pando.KindBookmark}
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
