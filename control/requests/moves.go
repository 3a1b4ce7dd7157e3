package requests

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

// moves carries out the requests to move an instance to another host.
type moves struct{ desk *desk }

const (
	moveWaitMax   = 10 * time.Minute // for a large program over a slow network
	switchWaitMax = 2 * time.Second  // for the commit that gives the instance to the other host
	landWaitMax   = 10 * time.Second
)

// Migrate implements pando.Operators.
//
//	plan ──► the record says where it goes ──► the new host expects it ──► the old one sends it
//	──► one commit ──► it runs there
//
// One commit deletes the record on the old host and puts it on the new one. It holds only while the
// old record has the mark of this move, which the old host takes away before it continues.
func (c *moves) Migrate(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, to pando.HostName, by pando.Asker,
) (st pando.MoveStatus, err error) {
	m, from, why, err := c.plan(s, i, to)
	if err != nil {
		return st, fmt.Errorf("move an instance of %s: %w", s, err)
	}
	st = pando.MoveStatus{Service: s, Instance: m.Instance.ID, From: from.Name, To: m.To.Name,
		Reason: why}
	if err = c.desk.change(ctx, bound(m, m.To.Name)); err == nil {
		err = c.carry(ctx, m, from, &st)
	}
	d := pando.Decision{
		ID: m.ID, Service: s, Instance: st.Instance, Kind: pando.DecidedMove, By: by,
		At: c.desk.mirror.Clock.Now(), Inputs: map[string]float64{"bytes": float64(st.Bytes),
			"stopped_bytes": float64(st.StoppedBytes), "stopped_seconds": st.StoppedSeconds},
		Reason: fmt.Sprintf("from %s to %s, which is %s: %d bytes, and it was stopped for %.0f ms",
			st.From, st.To, why, st.Bytes, st.StoppedSeconds*1000),
	}
	if err != nil {
		// The record says where the instance goes until another move says so: it permits little.
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), switchWaitMax)
		_ = c.desk.change(rest, bound(m, ""))
		cancel()
		outcome := "it failed, and the instance stays"
		switch {
		case errors.Is(err, mirror.ErrUnknown):
			outcome = "whether it moved is unknown"
		case errors.Is(err, errSilent):
			outcome = "it moved, and the new host does not report that it runs"
		}
		d.Reason = fmt.Sprintf("from %s to %s: %s: %s", st.From, st.To, outcome, status.Cut(err.Error()))
	}
	c.desk.rememberEnd(ctx, d)
	return st, err
}

// bound returns the edit that notes in the record of an instance the host that it moves to, which
// then may have its files from other hosts. "" takes the note away.
func bound(m pando.Move, to pando.HostName) func(*world.World, time.Time) (pando.Txn, error) {
	return func(w *world.World, _ time.Time) (pando.Txn, error) {
		was, ok := w.Instances[m.Instance.ID]
		if !ok || was.V.Host != m.From {
			return pando.Txn{}, fmt.Errorf("%w: instance %s left host %s meanwhile", pando.ErrConflict,
				m.Instance.ID, m.From)
		}
		next := was.V
		next.Bound = to
		return pando.Txn{If: []pando.Condition{was.If()}, Put: []pando.Stored{next}}, nil
	}
}

// errSilent is the end of a move whose new host has the instance and does not report it.
var errSilent = errors.New("which does not report that it runs")

// carry moves the instance and completes the status.
func (c *moves) carry(
	ctx context.Context, m pando.Move, from pando.Host, st *pando.MoveStatus,
) error {
	ctx, cancel := context.WithTimeout(ctx, moveWaitMax)
	defer cancel()
	if err := c.desk.peers.Expect(ctx, m.To, m); err != nil {
		if errors.Is(err, pando.ErrUnavailable) {
			err = fmt.Errorf("%w; `pando hosts` shows the hosts that answer", err)
		}
		return err
	}
	a, err := c.desk.peers.Depart(ctx, from, m)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), switchWaitMax)
		defer cancel()
		_ = c.desk.peers.GiveUp(ctx, m.To, m.ID) // that host asks as well
		return err
	}
	st.Bytes, st.StoppedBytes, st.StoppedSeconds = a.Bytes, a.StoppedBytes, a.StoppedSeconds
	began := c.desk.mirror.Clock.Now()
	// A caller that leaves now leaves the program stopped until the old host has the mark away.
	ctx, cancelRest := context.WithTimeout(context.WithoutCancel(ctx), landWaitMax)
	defer cancelRest()
	failpoint.Hit("move agreed")
	if err := c.give(ctx, m, a); err != nil {
		return err
	}
	failpoint.Hit("move given")
	if _, err := c.desk.peers.Landed(ctx, m.To, m.ID); err != nil {
		return fmt.Errorf("the instance belongs to %s, %w; `pando ps %s` shows it: %w", m.To.Name,
			errSilent, m.Instance.Service.Name, err)
	}
	st.StoppedSeconds += c.desk.mirror.Clock.Now().Sub(began).Seconds()
	return nil
}

// give gives the instance to its new host in one commit.
func (c *moves) give(ctx context.Context, m pando.Move, a pando.Arrival) error {
	ctx, cancel := context.WithTimeout(ctx, switchWaitMax)
	defer cancel()
	id, s := m.Instance.ID, m.Instance.Service
	for {
		c.desk.mirror.Mu.Lock()
		news := c.desk.mirror.Changed
		now := c.desk.mirror.World.Instances[id].V.Move
		c.desk.mirror.Mu.Unlock()
		if now != nil && *now == m.MoveMark {
			break // the old host wrote it before it answered, and the watch may be later
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the instance no longer moves", pando.ErrConflict)
		case <-news:
		}
	}
	return c.desk.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		d, known := decide.About(w, s, now, c.desk.mirror.IDs)
		if !known {
			return pando.Txn{}, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
		}
		return d.Moved(m, a)
	})
}

// plan checks a move, and chooses the host without one.
func (c *moves) plan(
	s pando.ServiceKey, i pando.InstanceID, to pando.HostName,
) (m pando.Move, from pando.Host, why string, err error) {
	on, from, err := c.desk.visited(s, i)
	if err != nil {
		return m, from, "", err
	}
	c.desk.mirror.Mu.RLock()
	defer c.desk.mirror.Mu.RUnlock()
	d, known := decide.About(c.desk.mirror.World, s, c.desk.mirror.Clock.Now(), c.desk.mirror.IDs)
	if !known {
		return m, from, "", fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	m, why, err = d.PlanMove(on, from, to)
	return m, from, why, err
}
