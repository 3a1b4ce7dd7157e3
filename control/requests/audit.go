package requests

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
)

// auditor keeps the audit.
type auditor struct {
	mirror *mirror.Mirror
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
	mirror.Complete(c.mirror, p)
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
			mirror.TookDeed(c.mirror, d, at)
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
	c.mirror.Mu.RLock()
	gone, was := c.mirror.World.Audit.Excess(deeds, bytes), c.mirror.World.Audit.Trim
	c.mirror.Mu.RUnlock()
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
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	c.mirror.World.Committed(t, at)
}

// Deeds implements pando.Auditor.
func (c *auditor) Deeds(ctx context.Context, q pando.DeedQuery) (pando.Audit, error) {
	if err := q.Check(); err != nil {
		return pando.Audit{}, err
	}
	end, stop := c.mirror.Clock.After(q.Wait)
	defer stop()
	for waits := q.Wait > 0; ; {
		c.mirror.Mu.RLock()
		news := c.mirror.Changed
		a := pando.Audit{Deeds: c.mirror.World.Audit.Deeds(q), Trim: c.mirror.World.Audit.Trim.V, Seen: c.mirror.World.Seen}
		c.mirror.Mu.RUnlock()
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
