package members

import (
	"context"
	"errors"
	"fmt"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
)

// SetRight implements pando.Operators. The right is a part of the membership and ends with it.
func (c *Members) SetRight(
	ctx context.Context, h pando.HostName, r pando.Right, may bool, by pando.Asker,
) error {
	if _, err := pando.ParseRight(string(r)); err != nil {
		return err
	}
	for n := 0; ; n++ {
		err := c.setRight(ctx, h, r, pando.Granting{May: may, By: by.Name, At: c.mirror.Clock.Now()})
		if err == nil {
			return nil
		}
		if !errors.Is(err, pando.ErrConflict) || n == mirror.Attempts {
			return fmt.Errorf("the right %s of host %s: %w", r, h, err)
		}
	}
}

func (c *Members) setRight(
	ctx context.Context, h pando.HostName, r pando.Right, g pando.Granting,
) error {
	w, err := c.stored(ctx, pando.MemberKey(h))
	if err != nil {
		return err
	}
	m, ok := w.Members[h]
	switch {
	case !ok:
		return fmt.Errorf("%w; `pando hosts` lists those there are", pando.ErrNotFound)
	case m.V.Server:
		return fmt.Errorf("%w: it has a server, so its operators may do all; `pando servers rm %s` "+
			"takes the server out", pando.ErrRefused, h)
	}
	next, changed := m.V.Grant(r, g)
	if !changed {
		return nil
	}
	_, err = c.mirror.CommitSurely(ctx, pando.Txn{
		If: []pando.Condition{m.If()}, Put: []pando.Stored{next},
	})
	if err == nil {
		c.mirror.Log.Info("changed a right of a host", "host", h, "right", r, "may", g.May, "by", g.By)
	}
	return err
}

// SetGrant implements pando.GrantOperators. The grant is a part of the membership and ends with it.
func (c *Members) SetGrant(
	ctx context.Context, h pando.HostName, of pando.Grant, may bool, by pando.Asker,
) error {
	if is, err := pando.ParseGrant(string(of)); err != nil || is != of {
		return errors.Join(err, fmt.Errorf("%w: the grant %q: write %s", pando.ErrInvalid, of, is))
	}
	for n := 0; ; n++ {
		err := c.setGrant(ctx, h, of, pando.Granting{May: may, By: by.Name, At: c.mirror.Clock.Now()})
		if err == nil {
			return nil
		}
		if !errors.Is(err, pando.ErrConflict) || n == mirror.Attempts {
			return fmt.Errorf("the grant %s of host %s: %w", of, h, err)
		}
	}
}

func (c *Members) setGrant(
	ctx context.Context, h pando.HostName, of pando.Grant, g pando.Granting,
) error {
	w, err := c.stored(ctx, pando.MemberKey(h))
	if err != nil {
		return err
	}
	m, ok := w.Members[h]
	if !ok {
		return fmt.Errorf("%w; `pando hosts` lists those there are", pando.ErrNotFound)
	}
	next, changed, err := m.V.SetGrant(of, g)
	if err != nil || !changed {
		return err
	}
	_, err = c.mirror.CommitSurely(ctx, pando.Txn{
		If: []pando.Condition{m.If()}, Put: []pando.Stored{next},
	})
	if err == nil {
		c.mirror.Log.Info("changed a grant of a host", "host", h, "grant", of, "may", g.May, "by", g.By)
	}
	return err
}
