package requests

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
	"pando.run/pando/world"
)

// tokens carries out the requests about the tokens of tenants.
type tokens struct{ desk *desk }

// SetToken implements pando.Operators.
func (c *tokens) SetToken(
	ctx context.Context, t pando.Token, replace bool, by pando.Asker,
) error {
	err := c.desk.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		t.At, t.By = now, by.Name
		old, known := w.Tokens[t.TokenKey]
		if err := t.Check(); err != nil {
			return pando.Txn{}, err
		}
		if life := t.Until.Sub(now); life <= 0 || life > pando.TokenLifeMax {
			return pando.Txn{}, fmt.Errorf("%w: a life of %s: want up to %s", pando.ErrInvalid,
				span.Text(life.Round(time.Second)), span.Text(pando.TokenLifeMax))
		}
		of := 0
		for k := range w.Tokens {
			if k.Tenant == t.Tenant {
				of++
			}
		}
		switch {
		case known && !replace:
			return pando.Txn{}, fmt.Errorf("%w; choose another name, or --replace it", pando.ErrExists)
		case !known && of >= pando.TokensMax:
			return pando.Txn{}, fmt.Errorf("%w: tenant %s has %d tokens; `pando tenant token rm` removes "+
				"one", pando.ErrRefused, t.Tenant, of)
		}
		return pando.Txn{If: []pando.Condition{{Key: t.Key(), Modified: old.Modified}},
			Put: []pando.Stored{t}}, nil
	})
	if err != nil {
		return fmt.Errorf("token %s: %w", t.TokenKey, err)
	}
	c.desk.mirror.Log.Info("made a token of a tenant", "token", t.TokenKey, "may", t.Text(),
		"until", t.Until, "by", by.Name)
	return nil
}

// Tokens implements pando.Operators.
func (c *tokens) Tokens(context.Context) ([]pando.TokenStatus, error) {
	c.desk.mirror.Mu.RLock()
	defer c.desk.mirror.Mu.RUnlock()
	out := []pando.TokenStatus{}
	for k, t := range c.desk.mirror.World.Tokens {
		out = append(out, pando.TokenStatus{TokenKey: k, May: t.V.May, At: t.V.At, By: t.V.By,
			Until: t.V.Until})
	}
	slices.SortFunc(out, func(a, b pando.TokenStatus) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// RemoveToken implements pando.Operators.
func (c *tokens) RemoveToken(ctx context.Context, k pando.TokenKey, by pando.Asker) error {
	return c.desk.change(ctx, func(w *world.World, _ time.Time) (pando.Txn, error) {
		old, known := w.Tokens[k]
		if !known {
			return pando.Txn{}, fmt.Errorf("token %s: %w; `pando tenant token ls` lists the tokens", k,
				pando.ErrNotFound)
		}
		c.desk.mirror.Log.Info("removed a token of a tenant", "token", k, "by", by.Name)
		return pando.Txn{If: []pando.Condition{old.If()}, Delete: []pando.Key{k.Key()}}, nil
	})
}

// Token returns the record of a token with this secret. An unknown token costs the same time as a
// wrong secret.
func (c *tokens) Token(k pando.TokenKey, secret []byte) (pando.Token, error) {
	c.desk.mirror.Mu.RLock()
	defer c.desk.mirror.Mu.RUnlock()
	t := c.desk.mirror.World.Tokens[k].V
	return t, t.Admits(secret, c.desk.mirror.Clock.Now())
}
