package move

import (
	"context"
	"fmt"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/turn"
)

// Snapshots takes the snapshots of instances of this host, one at a time: each fills the disk.
type Snapshots struct {
	host *Host
	turn turn.Turn
}

// NewSnapshots returns the snapshots of a host.
func NewSnapshots(h *Host) *Snapshots { return &Snapshots{host: h, turn: turn.New()} }

// Taking is an order to take a snapshot.
type Taking struct {
	Seed    bool
	Plain   bool   // not encrypted
	Resumed func() // the program runs on, before the files are stored; nil: no one waits
}

// Snapshot implements pando.HostAgent.
func (s *Snapshots) Snapshot(
	ctx context.Context, ask pando.SnapshotAsk,
) (pando.SealedSnapshot, error) {
	r, err := s.host.Agent.Runner(ask.Instance)
	if err != nil {
		return pando.SealedSnapshot{}, err
	}
	return s.Take(ctx, r, Taking{Plain: ask.Plain})
}

// Take stores a snapshot of an instance. The program stops only during the freeze.
func (s *Snapshots) Take(
	ctx context.Context, r *runner.Runner, t Taking,
) (out pando.SealedSnapshot, err error) {
	a := s.host
	now := r.Status()
	switch {
	case a.Supplier.Snapshots == nil:
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
		SpecHash: now.Instance.SpecHash, Seed: t.Seed, Encrypted: !t.Plain}
	keys, err := a.Supplier.KeysOf(ctx, r.ID)
	if err != nil {
		return out, fmt.Errorf("snapshot of %s: %w", r.ID, err)
	}
	if err := r.AnnounceSnapshot(ctx); err != nil {
		return out, err
	}
	out, err = a.Supplier.Snapshots.Keep(ctx, st, keys, func(dir string, st *pando.SnapshotStatus,
	) (err error) {
		began := a.Clock.Now()
		st.Machine, err = now.Box.Freeze(ctx, dir)
		if err == nil {
			// The program must continue after a caller that left.
			err = now.Box.Resume(context.WithoutCancel(ctx))
		}
		st.StoppedSeconds = a.Clock.Now().Sub(began).Seconds()
		if t.Resumed != nil {
			t.Resumed()
		}
		return err
	})
	if err != nil {
		return out, fmt.Errorf("snapshot of %s: %w", r.ID, err)
	}
	return out, nil
}

// Snapshots implements pando.HostAgent.
func (s *Snapshots) Snapshots(
	_ context.Context, k pando.ServiceKey,
) ([]pando.SealedSnapshot, error) {
	if s.host.Supplier.Snapshots == nil {
		return nil, nil
	}
	return s.host.Supplier.Snapshots.Kept(k)
}

// DropSnapshot implements pando.HostAgent.
func (s *Snapshots) DropSnapshot(ctx context.Context, k pando.ServiceKey, digest string) error {
	if s.host.Supplier.Snapshots == nil {
		return fmt.Errorf("snapshot %s: %w", digest, pando.ErrNotFound)
	}
	s.host.Seeds.Forget(k, digest)
	return s.host.Supplier.Snapshots.Drop(ctx, k, digest)
}
