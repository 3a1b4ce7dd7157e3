package supply

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/agent/records"
)

// Supplier supplies the starts of one host.
type Supplier struct {
	Host      pando.HostName
	Records   *records.Records
	Sandboxes pando.Sandboxes
	Images    pando.Images // nil: no service of this host has an image
	// Snapshots keeps the snapshots of instances. Nil: this host restores none.
	Snapshots pando.Snapshots
	// SnapshotKeys returns the keys of the snapshots of an instance, from the server. Nil: this host
	// has none.
	SnapshotKeys func(context.Context, pando.InstanceID) (pando.SnapshotKeys, error)
	// Secrets returns the secrets of an instance, from the server. Nil: there are none.
	Secrets func(context.Context, pando.InstanceID) (map[string][]byte, error)
	// Admit returns why the volumes of an instance keep it from a start, or nil.
	Admit func(ctx context.Context, i pando.Instance, s pando.Spec) error

	pulls *pulls
}

// New returns a supplier with the fields of s.
func New(s Supplier) *Supplier {
	s.pulls = newPulls()
	return &s
}
