package agent

import (
	"context"
	"fmt"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/turn"
)

// snapshots takes the snapshots of instances of this host, one at a time: each fills the disk.
type snapshots struct {
	agent *Agent
	turn  turn.Turn
}

// taking is an order to take a snapshot.
type taking struct {
	seed    bool
	plain   bool   // not encrypted
	resumed func() // the program runs on, before the files are stored; nil: no one waits
}

// Snapshot implements pando.HostAgent.
func (s *snapshots) Snapshot(
	ctx context.Context, ask pando.SnapshotAsk,
) (pando.SealedSnapshot, error) {
	r, err := s.agent.crews.runner(ask.Instance)
	if err != nil {
		return pando.SealedSnapshot{}, err
	}
	return s.take(ctx, r, taking{plain: ask.Plain})
}

// take stores a snapshot of an instance. The program stops only during the freeze.
func (s *snapshots) take(
	ctx context.Context, r *runner.Runner, t taking,
) (out pando.SealedSnapshot, err error) {
	a := s.agent
	now := r.Status()
	switch {
	case a.supplier.Snapshots == nil:
		return out, fmt.Errorf("%w: this host keeps no snapshots", pando.ErrUnsupported)
	case !now.Runs:
		return out, fmt.Errorf("%w: the program of instance %s does not run", pando.ErrConflict, r.ID)
	case !now.Instance.Phase.TakesFlows() && now.Instance.Phase != pando.PhaseStarting:
		return out, fmt.Errorf("%w: instance %s is %s", pando.ErrConflict, r.ID, now.Instance.Phase)
	}
	if err := s.turn.Take(ctx); err != nil {
		return out, fmt.Errorf("%w: another snapshot of this host is in progress; try again later",
			pando.ErrBusy)
	}
	defer s.turn.Give()
	st := pando.SnapshotStatus{Service: r.Service, Instance: r.ID, Revision: now.Instance.Revision,
		SpecHash: now.Instance.SpecHash, Seed: t.seed, Encrypted: !t.plain}
	keys, err := a.supplier.KeysOf(ctx, r.ID)
	if err != nil {
		return out, fmt.Errorf("snapshot of %s: %w", r.ID, err)
	}
	if err := r.AnnounceSnapshot(ctx); err != nil {
		return out, err
	}
	out, err = a.supplier.Snapshots.Keep(ctx, st, keys, func(dir string, st *pando.SnapshotStatus,
	) (err error) {
		began := a.Clock.Now()
		st.Machine, err = now.Box.Freeze(ctx, dir)
		if err == nil {
			// The program must continue after a caller that left.
			err = now.Box.Resume(context.WithoutCancel(ctx))
		}
		st.StoppedSeconds = a.Clock.Now().Sub(began).Seconds()
		if t.resumed != nil {
			t.resumed()
		}
		return err
	})
	if err != nil {
		return out, fmt.Errorf("snapshot of %s: %w", r.ID, err)
	}
	return out, nil
}

// Snapshots implements pando.HostAgent.
func (s *snapshots) Snapshots(
	_ context.Context, k pando.ServiceKey,
) ([]pando.SealedSnapshot, error) {
	if s.agent.supplier.Snapshots == nil {
		return nil, nil
	}
	return s.agent.supplier.Snapshots.Kept(k)
}

// DropSnapshot implements pando.HostAgent.
func (s *snapshots) DropSnapshot(ctx context.Context, k pando.ServiceKey, digest string) error {
	if s.agent.supplier.Snapshots == nil {
		return fmt.Errorf("snapshot %s: %w", digest, pando.ErrNotFound)
	}
	s.agent.host.Seeds.Forget(k, digest)
	return s.agent.supplier.Snapshots.Drop(ctx, k, digest)
}
