package supply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
)

// serverWaitMax is how long an agent waits for the server's answer with secrets or keys.
const serverWaitMax = 5 * time.Second

// SecretsOf brings the contents of the secrets of an instance from the server. ErrUnavailable: it
// is worth another attempt.
func (a *Supplier) SecretsOf(
	ctx context.Context, i pando.InstanceID, spec pando.Spec,
) (map[string][]byte, error) {
	if len(spec.StoredSecrets) == 0 {
		return nil, nil
	}
	if a.Secrets == nil {
		return nil, fmt.Errorf("%w: this host gets no secrets", pando.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, serverWaitMax)
	defer cancel()
	all, err := a.Secrets(ctx, i)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the server is %w: %w", pando.ErrUnavailable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bring its secrets: %w", err)
	}
	for _, one := range spec.StoredSecrets {
		if _, ok := all[one.Name]; !ok {
			return nil, fmt.Errorf("%w: bring its secrets: the server gave no %s", pando.ErrUnavailable,
				one.Name)
		}
	}
	return all, nil
}

// KeysOf brings the keys of the snapshots of an instance from the server.
func (a *Supplier) KeysOf(
	ctx context.Context, i pando.InstanceID,
) (keys pando.SnapshotKeys, err error) {
	if a.SnapshotKeys == nil {
		return keys, fmt.Errorf("%w: this host has no keys of snapshots", pando.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, serverWaitMax)
	defer cancel()
	keys, err = a.SnapshotKeys(ctx, i)
	if err == nil && (keys.Files == "" || keys.Seal == "") {
		err = fmt.Errorf("%w: the server gave none", pando.ErrUnavailable)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the server is %w: %w", pando.ErrUnavailable, err)
	}
	if err != nil {
		return keys, fmt.Errorf("bring the key of its snapshots; `pando hosts` shows the server: %w", err)
	}
	return keys, nil
}
