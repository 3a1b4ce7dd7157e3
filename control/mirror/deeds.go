package mirror

import (
	"context"
	"errors"

	"pando.run/pando"
)

// Auditing is a registry that writes the deed of a request in the transaction of its first change.
// The change and its deed are then durable together or not at all.
type Auditing struct {
	pando.Registry
	Mirror *Mirror
}

// Commit implements pando.Registry.
func (r Auditing) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	p := pando.DeedOf(ctx)
	if p == nil || t.Fence != (pando.Fence{}) {
		return r.Registry.Commit(ctx, t)
	}
	p.Lock()
	defer p.Unlock()
	if p.Stored || p.Closed {
		return r.Registry.Commit(ctx, t)
	}
	Complete(r.Mirror, p)
	learn(&p.Deed, t)
	with, d := t, p.Cut()
	with.Put = append(t.Put[:len(t.Put):len(t.Put)], d)
	at, err := r.Registry.Commit(ctx, with)
	if len(t.Put) == 0 && errors.Is(err, pando.ErrStoreFull) {
		return r.Registry.Commit(ctx, t) // a deletion makes room; the host's file has the deed
	}
	if err == nil {
		p.Stored = true
		TookDeed(r.Mirror, d, at)
	}
	return at, err
}

// Complete adds the time, the id and the own host to the deed of a request.
func Complete(m *Mirror, p *pando.Pending) {
	if p.ID == "" {
		p.At = m.Clock.Now()
		p.ID = m.IDs.Sequential(p.At)
	}
	if p.Source == "" {
		p.Source = "host " + m.Name
	}
	if p.Result == "" {
		p.Result = pando.DeedDone
	}
}

// learn takes the revision and the words of a deed from the transaction of its change.
func learn(d *pando.Deed, t pando.Txn) {
	for _, v := range t.Put {
		switch v := v.(type) {
		case pando.Revision:
			d.Revision = v.Number
			d.About("service", v.Service.Tenant, string(v.Service.Name))
		case pando.Decision:
			if d.Detail == "" {
				d.Detail = v.Reason
			}
		}
	}
}

// TookDeed applies the deed of this control's own commit, so that its caller finds it at once.
func TookDeed(m *Mirror, d pando.Deed, at pando.StoreRevision) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.World.Committed(pando.Txn{Put: []pando.Stored{d}}, at)
}
