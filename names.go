package pando

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Layout is the version of every stored record and of every pinned map. A reader upgrades older
// layouts as it reads (see world.Decode) and refuses newer ones.
const Layout = 1

// DefaultTenant owns everything without a tenant.
const DefaultTenant Tenant = "default"

// Names of the nouns. Each is a lower-case DNS label, so it fits into a key, a path, a host name
// and a URL.
type (
	Tenant      string
	ServiceName string
	HostName    string
	InstanceID  string
	IntentID    string
)

var label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$`)

// CheckLabel returns nil if s can name a thing of this kind ("service", "host", …), else the
// reason.
func CheckLabel(kind, s string) error {
	if label.MatchString(s) {
		return nil
	}
	return fmt.Errorf("%w: %s name %q: want 1 to 53 of a-z, 0-9 and '-', "+
		"beginning with a letter and not ending in '-'", ErrInvalid, kind, s)
}

// ServiceKey names a service across tenants.
type ServiceKey struct {
	Tenant Tenant      `json:"tenant"`
	Name   ServiceName `json:"name"`
}

// DefaultService returns the key of a service of the default tenant.
func DefaultService(name ServiceName) ServiceKey {
	return ServiceKey{Tenant: DefaultTenant, Name: name}
}

// String returns tenant/name, or the bare name for the default tenant.
func (k ServiceKey) String() string {
	if k.Tenant == DefaultTenant {
		return string(k.Name)
	}
	return string(k.Tenant) + "/" + string(k.Name)
}

// Compare orders services by tenant, then by name.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(cmp.Compare(k.Tenant, o.Tenant), cmp.Compare(k.Name, o.Name))
}

// ParseServiceKey reads the form that ServiceKey.String prints.
func ParseServiceKey(s string) (ServiceKey, error) {
	k := ServiceKey{Tenant: DefaultTenant, Name: ServiceName(s)}
	if tenant, name, ok := strings.Cut(s, "/"); ok {
		k = ServiceKey{Tenant: Tenant(tenant), Name: ServiceName(name)}
	}
	if err := CheckLabel("tenant", string(k.Tenant)); err != nil {
		return k, err
	}
	return k, CheckLabel("service", string(k.Name))
}

// Errors that a caller may test for with errors.Is. Each is wrapped into a sentence that names the
// action and the object.
var (
	ErrInvalid   = errors.New("invalid")        // the request itself is wrong
	ErrNotFound  = errors.New("not found")      // no such object
	ErrExists    = errors.New("exists already") // the name is taken
	ErrConflict  = errors.New("conflict")       // the object changed, or another request is pending
	ErrRefused   = errors.New("refused")        // a budget, a bound or a rule forbids it; see the text
	ErrForbidden = errors.New("forbidden")      // this asker may not ask that
	ErrTooLarge  = errors.New("too large")      // a body or a record is over its limit

	ErrLost        = errors.New("lost")                      // an earlier write is gone; nothing done
	ErrFenced      = errors.New("fenced")                    // the writer lost its leadership or epoch
	ErrStoreFull   = errors.New("the store is out of space") // no room for writes; traffic still flows
	ErrUnavailable = errors.New("the store is out of reach") // try again: the write may have happened
	ErrCompacted   = errors.New("history is compacted")      // start the watch again with a snapshot

	// ErrFrozen: a record cannot be read, or the store is not the one that is known. Nothing is done.
	ErrFrozen = errors.New("frozen")

	ErrNoRoom   = errors.New("no host has room") // no host for an instance, or no slot for a host
	ErrNotReady = errors.New("not ready")        // a condition did not hold by its deadline

	ErrUnsupported = errors.New("not supported on this kernel") // needs the kernel that the text names
)

// Clock is the only source of time below cmd/. In a simulation it is virtual.
type Clock interface {
	// Now returns the time.
	Now() time.Time
	// After delivers once, d from now. Stop releases it early.
	After(d time.Duration) (c <-chan time.Time, stop func())
}

// IDs makes unused names. Sequential names begin with the time, so they sort by birth.
type IDs interface {
	Instance(ServiceName) InstanceID // website-7k3fq
	Sequential(now time.Time) string // 01jd…: 26 characters
}

// Sleep waits for d on the clock, or until the context ends.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	ch, stop := c.After(d)
	defer stop()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
