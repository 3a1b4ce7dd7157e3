package requests

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/control/decide"
	"pando.run/pando/world"
)

// tenants carries out the requests about tenants.
type tenants struct{ desk *desk }

// SetTenant implements pando.Operators.
func (c *tenants) SetTenant(
	ctx context.Context, t pando.Tenant, change access.AccountChange, by pando.Asker,
) (access.TenantStatus, error) {
	err := c.desk.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		old, known := w.Tenants[t]
		if !known && len(w.Tenants) >= access.TenantsMax {
			return pando.Txn{}, fmt.Errorf("%w: the cluster has %d tenants with a record; "+
				"`pando tenant rm` removes one", pando.ErrRefused, len(w.Tenants))
		}
		next := old.V
		next.Tenant = t
		next, err := change.Of(next)
		if err != nil {
			return pando.Txn{}, err
		}
		if next == old.V {
			return pando.Txn{}, nil
		}
		for _, o := range w.Tenants {
			if o.V.Tenant != t && next.VIPs.IsValid() && o.V.VIPs.Overlaps(next.VIPs) {
				return pando.Txn{}, fmt.Errorf("%w: the VIPs %s overlap with %s of tenant %s; "+
					"choose another range", pando.ErrConflict, next.VIPs, o.V.VIPs, o.V.Tenant)
			}
		}
		next.At, next.By = now, by.Name
		return pando.Txn{If: []pando.Condition{{Key: next.Key(), Modified: old.Modified}},
			Put: []pando.Stored{next}}, nil
	})
	if err != nil {
		return access.TenantStatus{}, fmt.Errorf("set the tenant %s: %w", t, err)
	}
	c.desk.mirror.Mu.RLock()
	defer c.desk.mirror.Mu.RUnlock()
	st := tenantStatus(c.desk.mirror.World, t, c.desk.mirror.Clock.Now())
	st.Use.DiskBytes = decide.DiskOfTenants(c.desk.mirror.World)[t]
	return st, nil
}

// tenantStatus returns the status of a tenant without the sizes of its volumes.
func tenantStatus(w *world.World, t pando.Tenant, now time.Time) access.TenantStatus {
	a, _ := decide.AccountOf(w, t)
	st := access.TenantStatus{Account: a}
	st.Tenant = t
	u := w.UseOf(t)
	st.Use = access.TenantUse{Instances: u.Instances, CPUs: u.CPUs, MemoryBytes: u.MemoryBytes,
		Published: w.Published(t, now), Services: w.ServicesOf(t)}
	return st
}

// adriftOf returns the names of the instances without a record, by tenant and sorted.
func adriftOf(w *world.World) map[pando.Tenant][]string {
	out := map[pando.Tenant][]string{}
	for _, h := range w.Hosts {
		for word := range strings.FieldsSeq(h.V.Adrift) {
			if s, _ := pando.ParseAdrift(word); s.Tenant != "" { // a former build names no tenant
				out[s.Tenant] = append(out[s.Tenant], word)
			}
		}
	}
	for t := range out {
		slices.Sort(out[t])
	}
	return out
}

// Tenants implements pando.Operators.
func (c *tenants) Tenants(_ context.Context) ([]access.TenantStatus, error) {
	c.desk.mirror.Mu.RLock()
	defer c.desk.mirror.Mu.RUnlock()
	names := map[pando.Tenant]bool{}
	for t := range c.desk.mirror.World.Tenants {
		names[t] = true
	}
	for s := range c.desk.mirror.World.Services {
		names[s.Tenant] = true
	}
	adrift := adriftOf(c.desk.mirror.World)
	for t := range adrift {
		names[t] = true
	}
	out, now, disks := []access.TenantStatus{}, c.desk.mirror.Clock.Now(), decide.DiskOfTenants(c.desk.mirror.World)
	for t := range names {
		st := tenantStatus(c.desk.mirror.World, t, now)
		st.Use.DiskBytes, st.Adrift = disks[t], strings.Join(adrift[t], " ")
		out = append(out, st)
	}
	slices.SortFunc(out,
		func(a, b access.TenantStatus) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return out, nil
}

// RemoveTenant implements pando.Operators.
func (c *tenants) RemoveTenant(ctx context.Context, t pando.Tenant, by pando.Asker) error {
	return c.desk.change(ctx, func(w *world.World, _ time.Time) (pando.Txn, error) {
		old, known := w.Tenants[t]
		if !known {
			return pando.Txn{}, fmt.Errorf("tenant %s: %w; `pando tenant ls` lists the tenants", t,
				pando.ErrNotFound)
		}
		if n := w.ServicesOf(t); n > 0 {
			return pando.Txn{}, fmt.Errorf("%w: tenant %s has %d services, which would have no quota; "+
				"`pando rm` removes them", pando.ErrRefused, t, n)
		}
		c.desk.mirror.Log.Info("a tenant was removed", "tenant", string(t), "by", by.Name)
		gone := pando.Txn{If: []pando.Condition{old.If()}, Delete: []pando.Key{old.V.Key()}}
		for k := range w.Tokens {
			if k.Tenant == t {
				gone.Delete = append(gone.Delete, k.Key())
			}
		}
		return gone, nil
	})
}
