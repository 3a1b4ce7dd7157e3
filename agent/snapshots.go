package agent

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
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

// hookWait is how long a program has between the event `snapshot` and its freeze.
const hookWait = 50 * time.Millisecond

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
	ctx context.Context, r *runner, t taking,
) (out pando.SealedSnapshot, err error) {
	a := s.agent
	now := a.crews.statusOf(r)
	switch {
	case a.supplier.Snapshots == nil:
		return out, fmt.Errorf("%w: this host keeps no snapshots", pando.ErrUnsupported)
	case !now.runs:
		return out, fmt.Errorf("%w: the program of instance %s does not run", pando.ErrConflict, r.id)
	case !now.inst.Phase.TakesFlows() && now.inst.Phase != pando.PhaseStarting:
		return out, fmt.Errorf("%w: instance %s is %s", pando.ErrConflict, r.id, now.inst.Phase)
	}
	if err := s.turn.Take(ctx); err != nil {
		return out, fmt.Errorf("%w: another snapshot of this host is in progress; try again later",
			pando.ErrBusy)
	}
	defer s.turn.Give()
	st := pando.SnapshotStatus{Service: r.service, Instance: r.id, Revision: now.inst.Revision,
		SpecHash: now.inst.SpecHash, Seed: t.seed, Encrypted: !t.plain}
	keys, err := a.supplier.KeysOf(ctx, r.id)
	if err != nil {
		return out, fmt.Errorf("snapshot of %s: %w", r.id, err)
	}
	if err := r.announce(ctx); err != nil {
		return out, err
	}
	out, err = a.supplier.Snapshots.Keep(ctx, st, keys, func(dir string, st *pando.SnapshotStatus,
	) (err error) {
		began := a.Clock.Now()
		st.Machine, err = now.box.Freeze(ctx, dir)
		if err == nil {
			// The program must continue after a caller that left.
			err = now.box.Resume(context.WithoutCancel(ctx))
		}
		st.StoppedSeconds = a.Clock.Now().Sub(began).Seconds()
		if t.resumed != nil {
			t.resumed()
		}
		return err
	})
	if err != nil {
		return out, fmt.Errorf("snapshot of %s: %w", r.id, err)
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
	s.agent.seeds.Forget(k, digest)
	return s.agent.supplier.Snapshots.Drop(ctx, k, digest)
}

// announce sends the event `snapshot` and closes the program's connections to its socket. A program
// with such a connection has hookWait to answer.
func (r *runner) announce(ctx context.Context) error {
	a := r.a
	r.events.Send(a.Clock.Now(), pando.EventSnapshot, nil)
	if r.events.Listeners() > 0 {
		if err := pando.Sleep(ctx, a.Clock, hookWait); err != nil {
			return err
		}
	}
	if r.caller.HangUp() > 0 {
		return pando.Sleep(ctx, a.Clock, hookWait)
	}
	return nil
}
