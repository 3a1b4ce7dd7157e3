package agent

import (
	"context"
	"fmt"

	"pando.run/pando"
)

// Volumes implements pando.HostAgent.
func (w *window) Volumes(ctx context.Context, q pando.VolumeQuery) ([]pando.KeptVolume, error) {
	if w.agent.Kept == nil {
		return nil, nil
	}
	return w.agent.Kept.KeptVolumes(ctx, q)
}

// RemoveVolume implements pando.HostAgent.
func (w *window) RemoveVolume(ctx context.Context, s pando.ServiceKey, name string) error {
	if w.agent.Kept == nil {
		return fmt.Errorf("volume %s of %s on %s: %w", name, s, w.agent.Host.Name, pando.ErrNotFound)
	}
	return w.agent.Kept.RemoveVolume(ctx, s, name)
}
