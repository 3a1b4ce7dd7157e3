package requests

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
	"pando.run/pando/world"
)

// secrets carries out the requests about secrets.
type secrets struct {
	desk  *desk
	audit *auditor
}

// secretUsersMax bounds the services that one change of a secret notes.
const secretUsersMax = 500

// SetSecret implements pando.Operators. Every service that names the secret gets a decision. The
// decision wakes the service. Its endpoints then show the change to the hosts.
func (c *secrets) SetSecret(
	ctx context.Context, k pando.SecretKey, content []byte, by pando.Asker,
) (pando.SecretStatus, error) {
	if err := k.Check(); err != nil {
		return pando.SecretStatus{}, err
	}
	if len(content) == 0 || len(content) > pando.SecretBytesMax {
		return pando.SecretStatus{}, fmt.Errorf("%w: the secret %s has %d bytes: want 1 to %d",
			pando.ErrTooLarge, k, len(content), pando.SecretBytesMax)
	}
	if c.desk.vault == nil {
		return pando.SecretStatus{}, fmt.Errorf("%w: this server keeps no secrets",
			pando.ErrUnsupported)
	}
	sealed, err := c.desk.vault.Seal(k, content)
	if err != nil {
		return pando.SecretStatus{}, err
	}
	err = c.desk.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		if _, known := w.Secrets[k]; !known && secretsOf(w, k.Tenant) >= pando.TenantSecretsMax {
			return pando.Txn{}, fmt.Errorf("%w: tenant %s has %d secrets; `pando secret rm` removes one",
				pando.ErrRefused, k.Tenant, pando.TenantSecretsMax)
		}
		next := pando.Secret{SecretKey: k, Sealed: sealed, At: now, By: by.Name}
		t := pando.Txn{
			If:  []pando.Condition{{Key: k.Key(), Modified: w.Secrets[k].Modified}},
			Put: []pando.Stored{next},
		}
		users := usersOf(w, k)
		if len(users) > secretUsersMax {
			return t, fmt.Errorf("%w: %d services name the secret %s: want at most %d; use several secrets",
				pando.ErrTooLarge, len(users), k, secretUsersMax)
		}
		for _, s := range users {
			t.Put = append(t.Put, pando.Decision{ID: c.desk.mirror.IDs.Sequential(now), Service: s, By: by,
				At: now, Kind: pando.DecidedSecret,
				Reason: fmt.Sprintf("the secret %s has a new content", k)})
		}
		return t, nil
	})
	if err != nil {
		return pando.SecretStatus{}, fmt.Errorf("set the secret %s: %w", k, err)
	}
	c.desk.mirror.Mu.RLock()
	defer c.desk.mirror.Mu.RUnlock()
	return secretStatus(c.desk.mirror.World, c.desk.mirror.World.Secrets[k].V), nil
}

func secretStatus(w *world.World, s pando.Secret) pando.SecretStatus {
	return pando.SecretStatus{SecretKey: s.SecretKey, At: s.At, By: s.By,
		Services: usersOf(w, s.SecretKey)}
}

// secretsOf counts the secrets of a tenant.
func secretsOf(w *world.World, t pando.Tenant) (n int) {
	for k := range w.Secrets {
		if k.Tenant == t {
			n++
		}
	}
	return n
}

// usersOf returns the services that name a secret in their target revision or in that of an
// instance.
func usersOf(w *world.World, k pando.SecretKey) []pando.ServiceKey {
	out := []pando.ServiceKey{}
	for s, svc := range w.Services {
		if s.Tenant != k.Tenant {
			continue
		}
		named := false
		for _, n := range []int{svc.V.Target, svc.V.Current} {
			spec, _ := w.SpecOf(s, n)
			named = named || spec.HasSecret(k.Name)
		}
		if named {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, pando.ServiceKey.Compare)
	return out
}

// Secrets implements pando.Operators.
func (c *secrets) Secrets(_ context.Context) ([]pando.SecretStatus, error) {
	c.desk.mirror.Mu.RLock()
	defer c.desk.mirror.Mu.RUnlock()
	out := []pando.SecretStatus{}
	for _, s := range c.desk.mirror.World.Secrets {
		out = append(out, secretStatus(c.desk.mirror.World, s.V))
	}
	slices.SortFunc(out, func(a, b pando.SecretStatus) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// RemoveSecret implements pando.Operators.
func (c *secrets) RemoveSecret(ctx context.Context, k pando.SecretKey, by pando.Asker) error {
	return c.desk.change(ctx, func(w *world.World, _ time.Time) (pando.Txn, error) {
		known, ok := w.Secrets[k]
		if !ok {
			return pando.Txn{}, fmt.Errorf("secret %s: %w; `pando secret ls` lists the secrets", k,
				pando.ErrNotFound)
		}
		if users := usersOf(w, k); len(users) > 0 {
			return pando.Txn{}, fmt.Errorf("%w: %s has the secret %s in its spec; deploy it without the "+
				"secret first", pando.ErrRefused, users[0], k)
		}
		c.desk.mirror.Log.Info("a secret was removed", "secret", k.String(), "by", by.Name)
		return pando.Txn{If: []pando.Condition{{Key: k.Key(), Modified: known.Modified}},
			Delete: []pando.Key{k.Key()}}, nil
	})
}

// unset returns an error if a spec names a secret that the store lacks.
func unset(w *world.World, s pando.Spec) error {
	for _, one := range s.StoredSecrets {
		k := pando.SecretKey{Tenant: s.Key().Tenant, Name: one.Name}
		if _, ok := w.Secrets[k]; !ok {
			return fmt.Errorf("secrets: the secret %s: %w; set it with `pando secret set %[1]s "+
				"--file FILE`", k, pando.ErrNotFound)
		}
	}
	return nil
}

// GiveSecrets returns the contents of the secrets of an instance to its host. ErrForbidden: the
// instance is not on that host.
func (c *secrets) GiveSecrets(
	ctx context.Context, h pando.HostName, i pando.InstanceID,
) (map[string][]byte, error) {
	c.desk.mirror.Mu.RLock()
	o, known := c.desk.mirror.World.Instances[i]
	spec, specced := c.desk.mirror.World.SpecOf(o.V.Service, o.V.Revision)
	sealed := map[string][]byte{}
	for _, one := range spec.StoredSecrets {
		s, ok := c.desk.mirror.World.Secrets[pando.SecretKey{Tenant: o.V.Service.Tenant, Name: one.Name}]
		if ok {
			sealed[one.Name] = s.V.Sealed
		}
	}
	c.desk.mirror.Mu.RUnlock()
	switch {
	case !known || !specced:
		return nil, fmt.Errorf("%w: this server has not read the record of instance %s",
			pando.ErrUnavailable, i)
	case o.V.Host != h:
		return nil, fmt.Errorf("%w: instance %s is not on host %s", pando.ErrForbidden, i, h)
	case len(sealed) < len(spec.StoredSecrets):
		return nil, fmt.Errorf("a secret of instance %s: %w; `pando secret ls` lists the secrets", i,
			pando.ErrNotFound)
	case len(sealed) > 0 && c.desk.vault == nil:
		return nil, fmt.Errorf("%w: this server opens no secrets", pando.ErrUnsupported)
	}
	out, all := map[string][]byte{}, 0
	for name, text := range sealed {
		content, err := c.desk.vault.Open(pando.SecretKey{Tenant: o.V.Service.Tenant, Name: name}, text)
		if err != nil {
			return nil, err
		}
		if all += len(content); all > pando.SecretsBytesMax {
			return nil, fmt.Errorf("%w: the secrets of instance %s have more than %d bytes",
				pando.ErrTooLarge, i, pando.SecretsBytesMax)
		}
		out[name] = content
	}
	if len(out) > 0 {
		c.given(ctx, h, o.V, slices.Sorted(maps.Keys(out)))
	}
	return out, nil
}

// GiveSnapshotKeys returns the key of the encrypted snapshots of an instance's tenant, and the one
// that proves snapshots of this instance, to its host. ErrForbidden: the instance is not on that
// host.
func (c *secrets) GiveSnapshotKeys(
	ctx context.Context, h pando.HostName, i pando.InstanceID,
) (keys pando.SnapshotKeys, err error) {
	c.desk.mirror.Mu.RLock()
	o, known := c.desk.mirror.World.Instances[i]
	c.desk.mirror.Mu.RUnlock()
	switch {
	case !known:
		return keys, fmt.Errorf("%w: this server has not read the record of instance %s",
			pando.ErrUnavailable, i)
	case o.V.Host != h:
		return keys, fmt.Errorf("%w: instance %s is not on host %s", pando.ErrForbidden, i, h)
	case c.desk.vault == nil:
		return keys, fmt.Errorf("%w: this server has no key for snapshots", pando.ErrUnsupported)
	}
	if keys.Files, err = c.desk.vault.SnapshotKey(o.V.Service.Tenant); err == nil {
		keys.Seal, err = c.desk.vault.SnapshotSealKey(o.V.Service, o.V.ID, o.V.Revision)
	}
	if err != nil {
		return pando.SnapshotKeys{}, err
	}
	c.given(ctx, h, o.V, []string{"the key of encrypted snapshots"})
	return keys, nil
}

// given records in the audit that a host has secrets of an instance.
func (c *secrets) given(ctx context.Context, h pando.HostName, i pando.Instance, names []string) {
	p := &pando.Pending{Deed: pando.Deed{Source: "agent " + string(h), Verb: "read-secrets",
		Detail: strings.Join(names, ", ")}}
	p.About("instance", i.Service.Tenant, string(i.ID))
	p.Lock()
	defer p.Unlock()
	mirror.Complete(c.desk.mirror, p)
	_ = c.audit.record(ctx, p, refusedWaitMax) // it logs a failure
}

// mayUse returns nil if the author of a request may bring a stored revision into force, or run
// commands with it (pando.MayUseHosts). The caller holds the lock.
func mayUse(ctx context.Context, w *world.World, s pando.ServiceKey, revision int) error {
	stored, ok := w.SpecOf(s, revision)
	if _, token := pando.TokenOf(ctx); !token || revision == 0 {
		return nil
	}
	if !ok {
		return fmt.Errorf("%w: the spec of revision %d of %s has not arrived", pando.ErrNotReady, revision,
			s)
	}
	return pando.MayUseHosts(ctx, stored)
}
