package sim

import (
	"context"

	"pando.run/pando"
)

// Snapshot asks an agent for a snapshot.
func (p *Peers) Snapshot(
	ctx context.Context, h pando.Host, ask pando.SnapshotAsk,
) (pando.SealedSnapshot, error) {
	a, err := p.agent(h)
	if err != nil {
		return pando.SealedSnapshot{}, err
	}
	return a.Snapshot(ctx, ask)
}

// Snapshots returns the snapshots of a host.
func (p *Peers) Snapshots(
	ctx context.Context, h pando.Host, s pando.ServiceKey,
) ([]pando.SealedSnapshot, error) {
	a, err := p.agent(h)
	if err != nil {
		return nil, err
	}
	return a.Snapshots(ctx, s)
}

// DropSnapshot deletes a snapshot of a host.
func (p *Peers) DropSnapshot(
	ctx context.Context, h pando.Host, s pando.ServiceKey, digest string,
) error {
	a, err := p.agent(h)
	if err != nil {
		return err
	}
	return a.DropSnapshot(ctx, s, digest)
}
