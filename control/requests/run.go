package requests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/control/status"
	"pando.run/pando/lifecycle"
	"pando.run/pando/spec/span"
	"pando.run/pando/world"
)

// callers carries out the requests of operators about runs.
type callers struct{ desk *desk }

// StartRun implements pando.RunOperators.
func (c *callers) StartRun(
	ctx context.Context, s pando.ServiceKey, ask pando.RunAsk, by pando.Asker,
) (pando.Run, error) {
	return c.begin(ctx, s, ask, false, by)
}

// begin writes a new run. An attached one has one instance and no retry.
func (c *callers) begin(
	ctx context.Context, s pando.ServiceKey, ask pando.RunAsk, attached bool, by pando.Asker,
) (out pando.Run, err error) {
	err = c.desk.edit(ctx, s, by, func(svc *pando.Service, now time.Time) (*pando.Decision, error) {
		spec, ok := c.desk.mirror.World.SpecOf(s, svc.Target)
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: the spec of %s has not arrived", pando.ErrNotReady, s)
		case svc.Removing:
			return nil, fmt.Errorf("%w: %s is being removed", pando.ErrConflict, s)
		case svc.Book.Active() >= pando.RunsMax:
			return nil, fmt.Errorf("%w: %d runs of %s are in progress, and more than that never are; "+
				"`pando runs %s` lists them", pando.ErrRefused, svc.Book.Active(), s, s)
		}
		if err := errors.Join(access.MayUseHosts(ctx, spec), ask.Check(spec)); err != nil {
			return nil, err
		}
		for name, h := range c.desk.mirror.World.Hosts {
			if !h.V.Runs {
				return nil, fmt.Errorf("%w: host %s has an older pando without runs: upgrade pando there",
					pando.ErrUnsupported, name)
			}
		}
		r := lifecycle.NewRun(spec, svc.Target, now)
		r.By, r.Command = by, ask.Command
		if len(ask.Command) > 0 {
			r.Want, r.Retries = 1, 0
		}
		if attached {
			r.Attached, r.Alive, r.DeadlineSeconds = true, now, 0
		}
		svc.Book = svc.Book.With(r)
		out, _ = svc.Book.Newest()
		reason := fmt.Sprintf("run %d begins", out.Number)
		if len(ask.Command) > 0 {
			reason += ": " + words(ask.Command)
		}
		return &pando.Decision{Kind: pando.DecidedRun, By: by, Reason: reason,
			Inputs: map[string]float64{"number": float64(out.Number)}}, nil
	})
	return c.ranBefore(s, by, out, err)
}

// ranBefore returns the run of a request that was done before: run is then without a number.
func (c *callers) ranBefore(
	s pando.ServiceKey, by pando.Asker, run pando.Run, err error,
) (pando.Run, error) {
	if err != nil || run.Number > 0 {
		return run, err
	}
	c.desk.mirror.Mu.Lock()
	defer c.desk.mirror.Mu.Unlock()
	d, _ := asked(c.desk.mirror.World, s, by)
	number := int(d.Inputs["number"])
	book := c.desk.mirror.World.Services[s].V.Book
	if at := book.Find(number); at >= 0 {
		return book.Runs[at], nil
	}
	return run, fmt.Errorf("%w: the request was done before, and run %d of %s is no longer kept",
		pando.ErrNotFound, number, s)
}

// EndRun implements pando.RunOperators.
func (c *callers) EndRun(
	ctx context.Context, s pando.ServiceKey, number int, by pando.Asker,
) (pando.Run, error) {
	return c.turnRun(ctx, s, number, by, func(r *pando.Run, now time.Time) (string, error) {
		if !r.Active() {
			return "", fmt.Errorf("%w: run %d of %s has %s: %s", pando.ErrRefused, r.Number, s, r.State,
				r.Reason)
		}
		*r = r.End(pando.RunEnded, now, "by "+by.String())
		return fmt.Sprintf("run %d ends", r.Number), nil
	})
}

// turnRun changes a run. number 0 is the newest. Without a reason, nothing is recorded but the run.
func (c *callers) turnRun(
	ctx context.Context, s pando.ServiceKey, number int, by pando.Asker,
	change func(*pando.Run, time.Time) (reason string, err error),
) (out pando.Run, err error) {
	err = c.desk.edit(ctx, s, by, func(svc *pando.Service, now time.Time) (*pando.Decision, error) {
		book := svc.Book.Clone()
		if newest, ok := book.Newest(); ok && number == 0 {
			number = newest.Number
		}
		at := book.Find(number)
		if at < 0 {
			return nil, fmt.Errorf("%w: %s has no run %d; `pando runs %s` lists them", pando.ErrNotFound, s,
				number, s)
		}
		reason, err := change(&book.Runs[at], now)
		if err != nil {
			return nil, err
		}
		svc.Book, out = book, book.Runs[at]
		return &pando.Decision{Kind: pando.DecidedRun, By: by, Reason: reason,
			Inputs: map[string]float64{"number": float64(number)}}, nil
	})
	return c.ranBefore(s, by, out, err)
}

// AttachRun implements pando.RunOperators.
func (c *callers) AttachRun(
	ctx context.Context, s pando.ServiceKey, command pando.SessionSpec, by pando.Asker,
) (io.ReadWriteCloser, error) {
	if err := command.Check(); err != nil {
		return nil, err
	}
	r, err := c.begin(ctx, s, pando.RunAsk{Command: command.Command}, true, by)
	if err != nil {
		return nil, err
	}
	by.Request, by.Seen = "", 0
	alive, stop := context.WithCancel(context.WithoutCancel(ctx))
	go c.keepAlive(alive, s, r.Number)
	i, h, err := c.part(ctx, s, r.Number)
	var conn io.ReadWriteCloser
	if err == nil {
		conn, err = c.desk.peers.Exec(ctx, h, i, command)
	}
	if err != nil {
		stop()
		c.endAttached(ctx, s, r.Number, by, pando.RunFailed, "it did not start: "+status.Cut(err.Error()))
		return nil, err
	}
	v := &visit{ReadWriteCloser: conn}
	v.ended = sync.OnceFunc(func() {
		stop()
		state := pando.RunFailed
		if v.outcome() == "exit code 0" {
			state = pando.RunSucceeded
		}
		c.endAttached(ctx, s, r.Number, by, state, v.outcome())
	})
	return v, nil
}

// partWaitMax is how long a caller waits for a host that has room for its run. An instance that was placed
// may take longer to start.
const partWaitMax = time.Minute

// part waits for the instance of an attached run. It returns the reason of a run that ended before, or for
// which no host had room.
func (c *callers) part(
	ctx context.Context, s pando.ServiceKey, number int,
) (pando.InstanceID, pando.Host, error) {
	told, done := "", func() {}
	defer func() { done() }()
	for last := c.desk.mirror.Clock.Now(); ; {
		p := lookForPart(c, s, number)
		if p.host.Name != "" {
			return p.id, p.host, nil
		}
		if p.id != "" {
			last = c.desk.mirror.Clock.Now()
		}
		if p.why != told {
			done()
			told, done = p.why, pando.Waiting(ctx, c.desk.mirror.Clock,
				fmt.Sprintf("run %d of %s: %s", number, s, p.why))
		}
		if !p.run.Active() {
			return "", pando.Host{}, fmt.Errorf("%w: run %d of %s %s: %s", pando.ErrConflict, number, s,
				p.run.State, p.run.Reason)
		}
		late, stop := c.desk.mirror.Clock.After(last.Add(partWaitMax).Sub(c.desk.mirror.Clock.Now()))
		select {
		case <-ctx.Done():
			stop()
			return "", pando.Host{}, fmt.Errorf("run %d of %s has no instance yet: %w; "+
				"`pando why %s` has the reason", number, s, ctx.Err(), s)
		case <-late:
			return "", pando.Host{}, fmt.Errorf("%w: run %d of %s has had no instance for %s: %s; "+
				"`pando why --pending %s` explains each host, and with --detach the run waits longer",
				pando.ErrNotReady, number, s, span.Text(partWaitMax), p.why, s)
		case <-p.news:
			stop()
		}
	}
}

// seenPart is what the store has of an attached run.
type seenPart struct {
	run  pando.Run
	id   pando.InstanceID // "": none is placed
	host pando.Host       // it runs there
	why  string           // it does not run yet
	news <-chan struct{}
}

func lookForPart(c *callers, s pando.ServiceKey, number int) seenPart {
	c.desk.mirror.Mu.Lock()
	defer c.desk.mirror.Mu.Unlock()
	p := seenPart{news: c.desk.mirror.Changed}
	svc := c.desk.mirror.World.Services[s]
	if at := svc.V.Book.Find(number); at >= 0 {
		p.run = svc.V.Book.Runs[at]
	}
	p.why = cmp.Or(p.run.Reason, "its instance")
	for _, i := range world.RunsOf(c.desk.mirror.World, s) {
		h, here := c.desk.mirror.World.Hosts[i.Host]
		if i.Run.Number != number {
			continue
		}
		p.id, p.why = i.ID, fmt.Sprintf("%s is %s: %s", i.ID, i.Phase, i.Reason)
		if !here {
			p.why = fmt.Sprintf("%s is %s: host %s is away", i.ID, i.Phase, i.Host)
		}
		if i.Phase == pando.PhaseStarting && here && p.run.Active() {
			p.host = h.V
			break
		}
	}
	return p
}

// keepAlive signs for an attached run until its session ends. A run without signs ends by itself,
// also after the death of this server.
func (c *callers) keepAlive(ctx context.Context, s pando.ServiceKey, number int) {
	for pando.Sleep(ctx, c.desk.mirror.Clock, pando.RunAliveEvery) == nil {
		err := c.sign(ctx, s, number)
		if err != nil && ctx.Err() == nil {
			c.desk.mirror.Log.Warn("an attached run is not signed for", "service", s, "run", number,
				"error", err)
		}
	}
}

// endAttached writes the end of an attached run, also after its caller has gone.
func (c *callers) endAttached(
	ctx context.Context, s pando.ServiceKey, number int, by pando.Asker, state pando.RunState,
	reason string,
) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWaitMax)
	defer cancel()
	_, err := c.turnRun(ctx, s, number, by, func(r *pando.Run, now time.Time) (string, error) {
		if r.Active() {
			*r = r.End(state, now, reason)
		}
		return fmt.Sprintf("run %d %s: %s", number, r.State, r.Reason), nil
	})
	if err != nil && !errors.Is(err, pando.ErrNotFound) {
		c.desk.mirror.Log.Warn("the end of a run is not recorded: it ends when its signs are missed",
			"service", s, "run", number, "error", err)
	}
}

// sign writes that the caller of an attached run is there.
func (c *callers) sign(ctx context.Context, s pando.ServiceKey, number int) error {
	return c.desk.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		v, ok := w.Services[s]
		if err := w.Frozen(s); err != nil || !ok {
			return pando.Txn{}, err
		}
		book := v.V.Book.Clone()
		at := book.Find(number)
		if at < 0 || !book.Runs[at].Active() {
			return pando.Txn{}, nil
		}
		book.Runs[at].Alive, v.V.Book = now, book
		return pando.Txn{If: []pando.Condition{v.If()}, Put: []pando.Stored{v.V}}, nil
	})
}
