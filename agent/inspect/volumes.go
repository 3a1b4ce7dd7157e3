package inspect

import (
	"context"
	"fmt"

	"pando.run/pando"
)

// Volumes implements pando.HostAgent.
func (w *Inspector) Volumes(ctx context.Context, q pando.VolumeQuery) ([]pando.KeptVolume, error) {
	if w.Kept == nil {
		return nil, nil
	}
	return w.Kept.KeptVolumes(ctx, q)
}

// RemoveVolume implements pando.HostAgent.
func (w *Inspector) RemoveVolume(ctx context.Context, s pando.ServiceKey, name string) error {
	if w.Kept == nil {
		return fmt.Errorf("volume %s of %s on %s: %w", name, s, w.Host, pando.ErrNotFound)
	}
	return w.Kept.RemoveVolume(ctx, s, name)
}
