package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/turn"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

// Departures sends instances of this host to other hosts, one at a time.
//
//	mark in the record ──► stop, send ──► it waits there ──► record there: remove it here
//	                           │                │
//	                           └── failed ──────┴── no answer of control: take the mark away,
//	                                                then continue here
//
// Control gives the instance to the other host only while its record here has the mark. So this
// host continues a program only after it has taken the mark away, or if it never answered control.
type Departures struct {
	host *Host
	turn turn.Turn
	to   map[pando.InstanceID]pando.Move // the lock of the records guards it
}

// NewDepartures returns the departures from a host.
func NewDepartures(h *Host) *Departures {
	return &Departures{host: h, turn: turn.New(), to: map[pando.InstanceID]pando.Move{}}
}

// switchWaitMax is how long a stopped program waits for control to give it to the other host.
const switchWaitMax = 3 * time.Second

// handWaitMax bounds the sending of late packets.
const handWaitMax = 5 * time.Second

// Depart implements pando.HostAgent.
func (d *Departures) Depart(ctx context.Context, m pando.Move) (pando.Arrival, error) {
	r, err := d.host.Agent.Runner(m.Instance.ID)
	if err != nil {
		return pando.Arrival{}, err
	}
	if err := d.turn.Take(ctx); err != nil {
		return pando.Arrival{}, fmt.Errorf("%w: another instance leaves this host; try again later", pando.ErrBusy)
	}
	defer d.turn.Give()
	if err := d.begin(ctx, r, m); err != nil {
		return pando.Arrival{}, fmt.Errorf("move %s: %w", r.ID, err)
	}
	out, err := d.send(ctx, r, m)
	if err != nil {
		d.stay(r, m, false)
		return out, fmt.Errorf("move %s: %w", r.ID, err)
	}
	d.host.Spawn(func(ctx context.Context) {
		timer, stop := d.host.Clock.After(switchWaitMax)
		defer stop()
		select {
		case <-ctx.Done():
		case <-r.Ended():
		case <-timer:
			d.stay(r, m, true)
		}
	})
	failpoint.Hit("move sent")
	return out, nil
}

// begin marks the instance durably.
func (d *Departures) begin(ctx context.Context, r *runner.Runner, m pando.Move) error {
	merged, err := d.host.Branches.Merged(ctx, r.Service, r.ID)
	switch {
	case errors.Is(err, branch.ErrNoState):
	case err != nil:
		return err
	case !merged:
		return fmt.Errorf("%w: its state is not in main; POST /v1/self/state/push first",
			pando.ErrRefused)
	}
	if err := r.Depart(ctx, m); err != nil {
		return err
	}
	if err := r.Flush(ctx); err != nil {
		d.stay(r, m, false)
		return fmt.Errorf("record the move: %w", err)
	}
	failpoint.Hit("move marked")
	return nil
}

// send stops the program and sends it to the other host.
func (d *Departures) send(
	ctx context.Context, r *runner.Runner, m pando.Move,
) (out pando.Arrival, err error) {
	box := r.Status().Box
	if box == nil {
		return out, fmt.Errorf("%w: its program does not run", pando.ErrConflict)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, w := io.Pipe()
	counted := &countingWriter{Writer: w}
	var stopped time.Time
	var before int64
	left := make(chan error, 1)
	d.host.Spawn(func(context.Context) {
		err := box.Leave(ctx, counted, func() error {
			if err := r.AnnounceSnapshot(ctx); err != nil {
				return err
			}
			stopped, before = d.host.Clock.Now(), counted.n.Load()
			return nil
		})
		left <- err // before the other side learns of it
		w.CloseWithError(err)
	})
	out, err = d.host.Peers.Carry(ctx, m.To, m.ID, in)
	err = causeOf(err, left, func() { in.CloseWithError(errTakesNoMore) })
	out.Bytes = counted.n.Load()
	out.StoppedBytes = out.Bytes - before
	out.StoppedSeconds = d.host.Clock.Now().Sub(stopped).Seconds()
	return out, err
}

// errTakesNoMore ends the sending side after the receiving one has ended.
var errTakesNoMore = errors.New("the other host takes no more")

// causeOf returns the error of the side of a transfer that failed first. received is the error of
// the receiving side, and left delivers that of the sending side; stop ends the sending side.
func causeOf(received error, left <-chan error, stop func()) error {
	select {
	case sent := <-left: // it ended before the answer of the receiving side came
		stop()
		if received != nil && errors.Is(sent, io.ErrClosedPipe) || errors.Is(received, pando.ErrRefused) {
			return received // the receiving side had closed the pipe
		}
		return cmp.Or(sent, received)
	default:
	}
	stop()
	sent := <-left
	return cmp.Or(received, sent)
}

// countingWriter counts bytes.
type countingWriter struct {
	io.Writer
	n atomic.Int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// stay takes the mark away and continues the program here. answered: control may have given the
// instance to the other host, so the program continues only after the mark is gone. It returns
// without an effect if control has.
func (d *Departures) stay(r *runner.Runner, m pando.Move, answered bool) {
	d.host.Spawn(func(ctx context.Context) {
		r.Stay()
		if !answered {
			d.resume(ctx, r)
		}
		for wait := runner.RetryWait; ; wait = min(2*wait, runner.RetryWaitMax) {
			err := d.unmark(ctx, r)
			if err == nil {
				break
			}
			d.host.Log.Warn("an instance waits to stay: the store does not answer", "instance", r.ID,
				"error", err)
			if pando.Sleep(ctx, d.host.Clock, wait) != nil {
				return
			}
		}
		if d.host.Records.Record(r.ID).Modified == 0 {
			return // it is on the other host
		}
		if answered {
			d.resume(ctx, r)
		}
		r.Resumed()
		if m.To.Name != "" {
			_ = d.host.Peers.GiveUp(ctx, m.To, m.ID) // that host asks as well
		}
	})
}

// unmark writes the record without the mark, unless the record is gone.
func (d *Departures) unmark(ctx context.Context, r *runner.Runner) error {
	for {
		if err := r.Flush(ctx); err != nil {
			return err
		}
		v := d.host.Records.Record(r.ID)
		if v.Modified == 0 || v.V.Move == nil {
			return nil
		}
		if err := d.host.Records.AwaitChange(ctx, d.host.Records.News(), runner.RetryWait); err != nil {
			return err
		}
	}
}

func (d *Departures) resume(ctx context.Context, r *runner.Runner) {
	if box := r.Status().Box; box != nil {
		if err := box.Resume(ctx); err != nil {
			d.host.Log.Error("continue an instance that stays", "instance", r.ID, "error", err)
		}
	}
}

// HandOver sends the packets that came for a program after it stopped to its new host.
func (d *Departures) HandOver(r *runner.Runner, box pando.Sandbox) {
	d.host.Records.Lock()
	m, ok := d.to[r.ID]
	delete(d.to, r.ID)
	d.host.Records.Unlock()
	if !ok {
		return // the sandbox counts them
	}
	packets := box.Packets()
	if len(packets) == 0 {
		return
	}
	d.host.Spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, handWaitMax)
		defer cancel()
		if err := d.host.Peers.Hand(ctx, m.To, m.ID, packets); err != nil {
			d.host.Log.Warn("packets for an instance that left are lost; their senders repeat them",
				"instance", r.ID, "packets", len(packets), "error", err)
		}
	})
}

// Moving implements pando.HostAgent.
func (d *Departures) Moving(_ context.Context, id string) (bool, error) {
	d.host.Records.Lock()
	defer d.host.Records.Unlock()
	if d.host.Records.World.Seen == 0 {
		return false, fmt.Errorf("%w: this agent has no records yet", pando.ErrNotReady)
	}
	for _, v := range d.host.Records.World.On(d.host.Name) {
		if v.Move != nil && v.Move.ID == id {
			return true, nil
		}
	}
	return false, nil
}

// HasLeft reports whether an instance of this host is on another one by now.
func (d *Departures) HasLeft(
	_ *world.World, e pando.Endpoints, r *runner.Runner,
) bool {
	if r.Shown.Instance.Move == nil {
		return false
	}
	for _, t := range e.Seats {
		if t.Instance == r.ID {
			return e.HostOf(t) != d.host.Name
		}
	}
	return false
}

// Departs notes the move of an instance, for its late packets.
func (d *Departures) Departs(i pando.InstanceID, m pando.Move) {
	d.host.Records.Lock()
	defer d.host.Records.Unlock()
	d.to[i] = m
}

// Stays forgets the move of an instance.
func (d *Departures) Stays(i pando.InstanceID) {
	d.host.Records.Lock()
	defer d.host.Records.Unlock()
	delete(d.to, i)
}

// KeepHere takes the mark of a move from an instance that a former agent marked, unless control has
// given it to the other host.
func (d *Departures) KeepHere(r *runner.Runner, m pando.MoveMark) {
	d.stay(r, pando.Move{MoveMark: m}, true)
}
