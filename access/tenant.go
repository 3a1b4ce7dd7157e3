package access

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"pando.run/pando"
	"time"
)

// Bounds of the tenants of a cluster.
const (
	TenantsMax          = 1000 // with a record
	PublishPerSecondMax = 1000 // of one tenant
)

// Quota limits all services of a tenant together. A zero field is no limit.
type Quota struct {
	Instances   int     `json:"instances,omitempty" minimum:"0"` // in any phase, with the reserve
	Services    int     `json:"services,omitempty" minimum:"0"`
	CPUs        float64 `json:"cpus,omitempty" minimum:"0" maximum:"1000000"` // the sum of resources.cpus
	MemoryBytes int64   `json:"memory_bytes,omitempty" minimum:"0" maximum:"1125899906842624"`
	DiskBytes   int64   `json:"disk_bytes,omitempty" minimum:"0" maximum:"4503599627370496"` // the sum of the sizes of volumes
	// PublishPerSecond limits the changes of steering tables, which every host follows.
	PublishPerSecond float64 `json:"publish_per_second,omitempty" minimum:"0" maximum:"1000"`
}

// DefaultQuota is the quota of a tenant without a record. It bounds no processors and no memory:
// such a quota makes every spec set its limits. `pando tenant set` writes a record.
var DefaultQuota = Quota{Instances: 200, Services: 100, DiskBytes: 200 << 30}

// Account is the record of a tenant. A tenant without a record has DefaultQuota, and the tenant
// default has none.
type Account struct {
	Tenant pando.Tenant `json:"tenant"`
	Quota  Quota        `json:"quota"`
	VIPs   netip.Prefix `json:"vips,omitzero"` // of its new services alone; none: any free address
	At     time.Time    `json:"at"`
	By     string       `json:"by,omitempty"`
}

// TenantKey returns the key of a tenant's record.
func TenantKey(t pando.Tenant) pando.Key { return pando.MakeKey(pando.KindTenant, string(t)) }

// Key returns the key of the tenant's record.
func (a Account) Key() pando.Key { return TenantKey(a.Tenant) }

// Check returns nil if the record is valid, else the reason.
func (a Account) Check() error {
	if err := pando.CheckLabel("tenant", string(a.Tenant)); err != nil {
		return err
	}
	q := a.Quota
	finite := !math.IsNaN(q.CPUs+q.PublishPerSecond) && !math.IsInf(q.CPUs+q.PublishPerSecond, 0)
	switch {
	case a.Tenant == pando.DefaultTenant:
		return fmt.Errorf("%w: the tenant %s has no quota: give the services another tenant",
			pando.ErrRefused, a.Tenant)
	case !finite || q.Instances < 0 || q.Services < 0 || q.CPUs < 0 || q.MemoryBytes < 0 ||
		q.DiskBytes < 0 || q.PublishPerSecond < 0:
		return fmt.Errorf("%w: a quota is below 0 or no number: want 0 for no limit", pando.ErrInvalid)
	case q.CPUs > 1e6 || q.MemoryBytes > 1<<50 || q.DiskBytes > 1<<52:
		return fmt.Errorf("%w: a quota is larger than any cluster: want 0 for no limit", pando.ErrInvalid)
	case q.PublishPerSecond > PublishPerSecondMax:
		return fmt.Errorf("%w: %g changes per second: want at most %d, or 0 for no limit",
			pando.ErrInvalid, q.PublishPerSecond, PublishPerSecondMax)
	case a.VIPs.IsValid() && (a.VIPs != a.VIPs.Masked() || a.VIPs.Bits() < pando.VIPs4.Bits() ||
		!pando.VIPs4.Contains(a.VIPs.Addr())):
		return fmt.Errorf("%w: the VIPs %s: want a range within %s, such as %s", pando.ErrInvalid, a.VIPs,
			pando.VIPs4, netip.PrefixFrom(pando.VIPs4.Addr(), 24))
	}
	return nil
}

// AccountChange changes the fields of a tenant's record that are not nil. 0 lifts a quota.
type AccountChange struct {
	Instances        *int     `json:"instances,omitempty" minimum:"0"`
	Services         *int     `json:"services,omitempty" minimum:"0"`
	CPUs             *float64 `json:"cpus,omitempty" minimum:"0" maximum:"1000000"`
	MemoryBytes      *int64   `json:"memory_bytes,omitempty" minimum:"0" maximum:"1125899906842624"`
	DiskBytes        *int64   `json:"disk_bytes,omitempty" minimum:"0" maximum:"4503599627370496"`
	PublishPerSecond *float64 `json:"publish_per_second,omitempty" minimum:"0" maximum:"1000"`
	// VIPs is a range within the cluster's, or "" for any free address.
	VIPs *string `json:"vips,omitempty"`
}

// Of returns an account with the change.
func (c AccountChange) Of(a Account) (Account, error) {
	set(&a.Quota.Instances, c.Instances)
	set(&a.Quota.Services, c.Services)
	set(&a.Quota.CPUs, c.CPUs)
	set(&a.Quota.MemoryBytes, c.MemoryBytes)
	set(&a.Quota.DiskBytes, c.DiskBytes)
	set(&a.Quota.PublishPerSecond, c.PublishPerSecond)
	if c.VIPs != nil {
		a.VIPs = netip.Prefix{}
		if *c.VIPs != "" {
			p, err := netip.ParsePrefix(*c.VIPs)
			if err != nil {
				return a, fmt.Errorf("%w: the VIPs %q: want a range such as %s", pando.ErrInvalid, *c.VIPs,
					netip.PrefixFrom(pando.VIPs4.Addr(), 24))
			}
			a.VIPs = p
		}
	}
	return a, a.Check()
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// TenantUse is the sum of the limits of a tenant's instances.
type TenantUse struct {
	Services    int     `json:"services"`
	Instances   int     `json:"instances"`
	CPUs        float64 `json:"cpus"` // the sum of resources.cpus
	MemoryBytes int64   `json:"memory_bytes"`
	// DiskBytes are the sizes of its volumes, also of those that removed services left.
	DiskBytes int64 `json:"disk_bytes"`
	// Published counts the changes of steering tables in the last second.
	Published int `json:"published_last_second"`
}

// TenantStatus is one line of `pando tenant ls`.
type TenantStatus struct {
	Account
	Use TenantUse `json:"use"`
	// Adrift names its instances that run without a record since a restore, as Host.Adrift does.
	Adrift string `json:"adrift,omitempty"`
}

// TenantOperators is every request about tenants.
type TenantOperators interface {
	// SetTenant creates or changes the record of a tenant.
	SetTenant(ctx context.Context, t pando.Tenant, c AccountChange, by pando.Asker) (TenantStatus, error)
	// Tenants returns every tenant with a record or a service, sorted by name.
	Tenants(ctx context.Context) ([]TenantStatus, error)
	// RemoveTenant removes the record of a tenant. ErrRefused: it has services.
	RemoveTenant(ctx context.Context, t pando.Tenant, by pando.Asker) error
}
