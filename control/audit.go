package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
)

var _ pando.Auditor = (*Control)(nil)

// auditing is a registry that writes the deed of a request in the transaction of its first change.
// The change and its deed are then durable together or not at all.
type auditing struct {
	pando.Registry
	view *view
}

// Commit implements pando.Registry.
func (r auditing) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	p := pando.DeedOf(ctx)
	if p == nil || t.Fence != (pando.Fence{}) {
		return r.Registry.Commit(ctx, t)
	}
	p.Lock()
	defer p.Unlock()
	if p.Stored || p.Closed {
		return r.Registry.Commit(ctx, t)
	}
	complete(r.view, p)
	learn(&p.Deed, t)
	with, d := t, p.Cut()
	with.Put = append(t.Put[:len(t.Put):len(t.Put)], d)
	at, err := r.Registry.Commit(ctx, with)
	if len(t.Put) == 0 && errors.Is(err, pando.ErrStoreFull) {
		return r.Registry.Commit(ctx, t) // a deletion makes room; the host's file has the deed
	}
	if err == nil {
		p.Stored = true
		tookDeed(r.view, d, at)
	}
	return at, err
}

// complete adds the time, the id and the own host to the deed of a request.
func complete(c *view, p *pando.Pending) {
	if p.ID == "" {
		p.At = c.Clock.Now()
		p.ID = c.IDs.Sequential(p.At)
	}
	if p.Source == "" {
		p.Source = "host " + c.Name
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

// tookDeed applies the deed of this control's own commit, so that its caller finds it at once.
func tookDeed(c *view, d pando.Deed, at pando.StoreRevision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.world.Committed(pando.Txn{Put: []pando.Stored{d}}, at)
}

// auditor keeps the audit.
type auditor struct {
	mirror *view
	// audited gets each deed with its outcome, for a file of this host. Nil: there is none.
	audited func(pando.Deed) error
}

// The waits for the record of a deed. A refused request has probably met a store without answers,
// and the secrets of an instance do not wait for long.
const (
	deedWaitMax    = 5 * time.Second
	refusedWaitMax = time.Second
)

// Record implements pando.Auditor. The file of this host gets every deed, also one that the store
// cannot take.
func (c *auditor) Record(ctx context.Context, p *pando.Pending) error {
	p.Lock()
	defer p.Unlock()
	complete(c.mirror, p)
	p.Closed = true
	if p.Result != pando.DeedDone {
		return c.record(ctx, p, refusedWaitMax)
	}
	return c.record(ctx, p, deedWaitMax)
}

// record stores a deed within a time. The caller holds its lock.
func (c *auditor) record(ctx context.Context, p *pando.Pending, wait time.Duration) error {
	d := p.Cut()
	// The request itself may have ended.
	ctx, cancel := context.WithTimeout(pando.WithDeed(context.WithoutCancel(ctx), nil), wait)
	defer cancel()
	var err error
	if !p.Stored || d.Result != pando.DeedDone {
		var at pando.StoreRevision
		if at, err = c.mirror.Registry.Commit(ctx, pando.Txn{Put: []pando.Stored{d}}); err == nil {
			p.Stored = true
			tookDeed(c.mirror, d, at)
		}
	}
	var missing error
	if c.audited != nil {
		missing = c.audited(d)
	}
	if all := errors.Join(err, missing); all != nil {
		c.mirror.Log.Error("a deed is missing in a part of the audit", "source", d.Source, "verb", d.Verb,
			"object", d.Object, "result", d.Result, "error", all)
	}
	c.trimAudit(ctx, pando.DeedsMax, pando.DeedsBytesMax)
	if err != nil && (missing != nil || c.audited == nil) {
		return fmt.Errorf("record %s in the audit: %w", d.Verb, errors.Join(err, missing))
	}
	return nil // the store or the file has it
}

// trimAudit removes the oldest deeds beyond the bounds, and records their number. Of two servers
// that trim at once, one succeeds.
func (c *auditor) trimAudit(ctx context.Context, deeds, bytes int) {
	c.mirror.mu.RLock()
	gone, was := c.mirror.world.Audit.Excess(deeds, bytes), c.mirror.world.Audit.Trim
	c.mirror.mu.RUnlock()
	if len(gone) == 0 {
		return
	}
	next := was.V
	next.Deeds += len(gone)
	next.At = c.mirror.Clock.Now()
	t := pando.Txn{If: []pando.Condition{{Key: next.Key(), Modified: was.Modified}}}
	for _, d := range gone {
		if d.At.After(next.Until) {
			next.Until = d.At
		}
		t.Delete = append(t.Delete, d.Key())
	}
	t.Put = []pando.Stored{next}
	at, err := c.mirror.Registry.Commit(ctx, t)
	if err != nil {
		if !errors.Is(err, pando.ErrConflict) {
			c.mirror.Log.Warn("the audit is not trimmed", "deeds", len(gone), "error", err)
		}
		return
	}
	c.mirror.mu.Lock()
	defer c.mirror.mu.Unlock()
	c.mirror.world.Committed(t, at)
}

// Deeds implements pando.Auditor.
func (c *auditor) Deeds(ctx context.Context, q pando.DeedQuery) (pando.Audit, error) {
	if err := q.Check(); err != nil {
		return pando.Audit{}, err
	}
	end, stop := c.mirror.Clock.After(q.Wait)
	defer stop()
	for waits := q.Wait > 0; ; {
		c.mirror.mu.RLock()
		news := c.mirror.changed
		a := pando.Audit{Deeds: c.mirror.world.Audit.Deeds(q), Trim: c.mirror.world.Audit.Trim.V, Seen: c.mirror.world.Seen}
		c.mirror.mu.RUnlock()
		if !waits || len(a.Deeds) > 0 {
			return a, nil
		}
		select {
		case <-ctx.Done():
			return a, fmt.Errorf("wait for a deed: %w", ctx.Err())
		case <-end:
			waits = false
		case <-news:
		}
	}
}
