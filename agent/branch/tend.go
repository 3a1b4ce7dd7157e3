package branch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

const (
	tendEvery = time.Second // between two looks at the copies, at least
	tendRest  = 5 * time.Second
	// silentMax is how long a copy with a lease may take no commits before its keeper reports it.
	silentMax = 10 * time.Second
	// repairsMax bounds the first copies that this host sends at the same time, and repairBytes the
	// bytes of each in a second.
	repairsMax  = 2
	repairBytes = 32 << 20
)

// Tend keeps the states of this host on all hosts of their records, until ctx ends. A keeper sends
// first copies to joining hosts, and merges the branches of lost hosts. A host that left the copies
// drops its own.
func (b *Branches) Tend(ctx context.Context) {
	var repairs sync.WaitGroup
	defer repairs.Wait()
	slots := make(chan struct{}, repairsMax)
	for pando.Sleep(ctx, b.config.Clock, tendEvery) == nil {
		news := b.config.Records.News()
		for _, k := range b.config.Records.Keepers() {
			if k.V.Host == b.config.Host {
				b.repair(ctx, k, slots, &repairs)
				b.report(ctx, k)
			}
			b.tidy(ctx, k.V)
		}
		timer, stop := b.config.Clock.After(tendRest)
		select {
		case <-ctx.Done():
		case <-news:
		case <-timer:
		}
		stop()
	}
}

// repair starts a first copy for each joining host, as many as there are free slots.
func (b *Branches) repair(ctx context.Context, k world.Versioned[pando.Keeper],
	slots chan struct{}, repairs *sync.WaitGroup) {
	for _, h := range k.V.Joining {
		c := copyOf{k.V.Service, h}
		if !b.copies.begin(c) {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			b.copies.end(c)
			return
		}
		repairs.Go(func() {
			defer func() { <-slots; b.copies.end(c) }()
			if err := b.admit(ctx, c); err != nil && ctx.Err() == nil {
				b.config.Log.Warn("a copy of a state is not complete yet; it is tried again",
					"service", c.service, "host", c.host, "error", err)
			}
		})
	}
}

// begin reports whether no first copy for a host is on its way, and notes this one.
func (c *copies) begin(of copyOf) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[of] {
		return false
	}
	c.busy[of] = true
	return true
}

func (c *copies) end(of copyOf) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, of)
}

// admit sends a joining host main and every branch, and then writes that the host keeps a copy. The
// write fails if main or the copies have changed since main was read. Commits since the host's
// joining reach it by themselves, because this host refuses those with an older record.
func (b *Branches) admit(ctx context.Context, c copyOf) error {
	if err := b.sendFirst(ctx, c); err != nil { // most of the bytes
		return err
	}
	b.copies.salvaging.Lock()
	defer b.copies.salvaging.Unlock()
	for {
		news := b.config.Records.News()
		k := b.config.Records.Keeper(c.service)
		if k.V.Host != b.config.Host || !slices.Contains(k.V.Joining, c.host) {
			return nil
		}
		head := b.config.Records.Main(c.service)
		if err := b.sendAll(ctx, c, k.V, head.V.Commit); err != nil {
			b.copies.tried(c, err, b.config.Clock.Now())
			return err
		}
		failpoint.Hit("copy sent")
		next := k.V
		next.Joining = slices.DeleteFunc(slices.Clone(k.V.Joining),
			func(h pando.HostName) bool { return h == c.host })
		next.Copies = append(slices.Clone(k.V.Copies), c.host)
		next.Epoch, next.At = k.V.Epoch+1, b.config.Clock.Now()
		next.Reason = fmt.Sprintf("%s has all commits", c.host)
		_, err := b.config.Records.Commit(ctx, pando.Txn{Put: []pando.Stored{next}, If: []pando.Condition{
			k.If(), {Key: pando.HeadKey(c.service), Modified: head.Modified}}})
		if !errors.Is(err, pando.ErrConflict) {
			return err
		}
		if err := b.awaitNews(ctx, news); err != nil {
			return err
		}
	}
}

// sendFirst sends main and every branch once, before the sending that counts.
func (b *Branches) sendFirst(ctx context.Context, c copyOf) error {
	k := b.config.Records.Keeper(c.service)
	if k.V.Host != b.config.Host || !slices.Contains(k.V.Joining, c.host) {
		return nil
	}
	err := b.sendAll(ctx, c, k.V, b.config.Records.Main(c.service).V.Commit)
	if err != nil {
		b.copies.tried(c, err, b.config.Clock.Now())
	}
	return err
}

// sendAll sends main and every branch of this host to another one.
func (b *Branches) sendAll(
	ctx context.Context, c copyOf, k pando.Keeper, main pando.ObjectID,
) error {
	pace := func(w io.Writer) io.Writer { return &paced{w: w, ctx: ctx, clock: b.config.Clock} }
	if err := b.Bring(ctx, c.service, main); err != nil {
		return err
	}
	head := pando.Shipment{Service: c.service, From: b.config.Host, Epoch: k.Epoch}
	notes, err := state.Notes(b.config.Objects, c.service)
	if err != nil {
		return err
	}
	if head.Refs = notes; !main.IsZero() {
		head.Refs[state.MainRef] = main
	}
	if len(head.Refs) > 0 {
		if err := b.send(ctx, c, head, state.Held{}, pace); err != nil {
			return err
		}
	}
	branches, err := state.Branches(b.config.Objects, c.service)
	if err != nil {
		return err
	}
	for _, i := range slices.Sorted(maps.Keys(branches)) {
		if head.Refs, err = state.RefsOf(b.config.Objects, c.service, i); err != nil {
			return err
		}
		if len(head.Refs) == 0 {
			continue // it was dropped meanwhile
		}
		head.Instance = i
		if err := b.send(ctx, c, head, state.Held{}, pace); err != nil {
			return err
		}
	}
	return nil
}

// paced bounds the bytes of a second.
type paced struct {
	w     io.Writer
	ctx   context.Context
	clock pando.Clock
	sent  int
}

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.sent += n
	const step = repairBytes / 20
	for ; err == nil && p.sent >= step; p.sent -= step {
		err = pando.Sleep(p.ctx, p.clock, time.Second/20)
	}
	return n, err
}

// report names the copies that hold their lease and take no commits. Control then drops them.
func (b *Branches) report(ctx context.Context, k world.Versioned[pando.Keeper]) {
	next := k.V
	for _, h := range k.V.Receivers(b.config.Host) {
		since := b.copies.silentSince(copyOf{k.V.Service, h})
		if _, here := b.config.Records.Reach(h); !here || since.IsZero() || slices.Contains(next.Silent, h) ||
			b.config.Clock.Now().Sub(since) < silentMax {
			continue
		}
		next.Silent = append(slices.Clone(next.Silent), h)
		next.Reason = fmt.Sprintf("%s has taken no commits for %v", h, silentMax)
	}
	if len(next.Silent) == len(k.V.Silent) {
		return
	}
	next.Epoch, next.At = k.V.Epoch+1, b.config.Clock.Now()
	_, err := b.config.Records.Commit(ctx,
		pando.Txn{If: []pando.Condition{k.If()}, Put: []pando.Stored{next}})
	if err != nil && !errors.Is(err, pando.ErrConflict) && ctx.Err() == nil {
		b.config.Log.Warn("a silent copy of a state could not be reported", "service", k.V.Service, "error", err)
	}
}

// tidy handles the branches of instances that are not here. The keeper merges those of lost hosts.
// A host without a copy drops all. Other copies wait until main contains them (see state.Trim).
func (b *Branches) tidy(ctx context.Context, k pando.Keeper) {
	if k.Host != b.config.Host && k.Holds(b.config.Host) {
		return
	}
	branches, err := state.Branches(b.config.Objects, k.Service)
	if err != nil {
		b.config.Log.Warn("list the branches of a state", "service", k.Service, "error", err)
		return
	}
	target, _ := b.config.Records.Target(k.Service)
	_, _, read := b.config.Records.Heads()
	for _, i := range slices.Sorted(maps.Keys(branches)) {
		_, seated := b.config.Records.Seat(k.Service, i)
		switch {
		case b.config.Records.Alive(i), b.isOpen(i):
			continue
		case k.Host != b.config.Host && !b.seatedHere(k.Service, i):
			if read { // else the host's own instances are not read yet
				err = b.release(ctx, k.Service, i)
			}
		case len(b.config.Records.Types(k.Service, target)) == 0: // the spec has not arrived
			continue
		case k.Whole() && !b.runs(k.Service, i):
			err = b.salvage(ctx, k.Service, i, seated)
		}
		if err != nil && ctx.Err() == nil {
			b.config.Log.Warn("the branch of an instance that is gone is left; it is tried again",
				"instance", i, "error", err)
			return
		}
	}
}

// salvage merges a branch of another host and drops it. If the instance has a record, its host may
// come back with the branch, so a note stays. No trim runs meanwhile, because a shipment of that
// host may replace the refs of the merge.
func (b *Branches) salvage(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, seated bool,
) error {
	b.copies.salvaging.Lock()
	defer b.copies.salvaging.Unlock()
	b.copies.whole.RLock()
	defer b.copies.whole.RUnlock()
	return b.drop(ctx, s, i, seated)
}

// release drops the refs of a branch unless this host keeps a copy by now. No shipment is stored
// meanwhile.
func (b *Branches) release(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID,
) error {
	if !b.copies.whole.TryLock() {
		return nil // it is tried again
	}
	defer b.copies.whole.Unlock()
	if b.config.Records.Keeper(s).V.Holds(b.config.Host) {
		return nil
	}
	return state.Release(ctx, b.config.Objects, s, i)
}
