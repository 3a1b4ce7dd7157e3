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
	// copyWaitMax bounds the wait of a commit for its copies. It covers the end of a lease and a new
	// copy of a small state.
	copyWaitMax = 20 * time.Second
	// shipWaitMax bounds one shipment of a commit to one host.
	shipWaitMax = 5 * time.Second
	// shipAgain is the wait before the next attempt, if no record changes meanwhile.
	shipAgain = 100 * time.Millisecond
	// bringWaitMax bounds the time to bring main to a host. 10 GB take 2 minutes at 1 Gbit/s.
	bringWaitMax = 10 * time.Minute
	// hostsPerCommit bounds the shipments of one commit at the same time.
	hostsPerCommit = 2 * pando.CopiesMax
)

// ErrUncopied reports a commit that is durable here and not on as many hosts as the spec wants.
var ErrUncopied = fmt.Errorf("%w: the state has too few copies", pando.ErrNotReady)

// copies moves objects between the hosts that keep one state.
type copies struct {
	// whole is held for writing by a trim, and for reading while objects arrive that no ref has yet.
	// A trim only tries to take it, so that it never holds up a commit.
	whole sync.RWMutex

	enrolling sync.Mutex
	// salvaging keeps the note of a salvage from being written while a joining host gets the notes.
	salvaging sync.Mutex

	mu   sync.Mutex
	had  map[copyOf]map[pando.InstanceID]taken // the last shipment to a host
	main map[pando.ServiceKey]pando.ObjectID   // the newest main that is whole here
	busy map[copyOf]bool                       // a first copy is on its way
	mute map[copyOf]time.Time                  // since when a host takes nothing
}

// taken is the last shipment of a branch that a host took.
type taken struct {
	epoch int64
	refs  map[string]pando.ObjectID
}

// copyOf is the copy of a state on a host.
type copyOf struct {
	service pando.ServiceKey
	host    pando.HostName
}

func newCopies() *copies {
	return &copies{
		had:  map[copyOf]map[pando.InstanceID]taken{},
		main: map[pando.ServiceKey]pando.ObjectID{}, busy: map[copyOf]bool{},
		mute: map[copyOf]time.Time{},
	}
}

// Commit commits the changes of an instance and returns once the commit is durable on every host
// that keeps a copy of the state.
func (b *Branches) Commit(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, c pando.StateChange,
) (pando.ObjectID, error) {
	branch, err := b.Of(ctx, i)
	if err != nil {
		return pando.ObjectID{}, err
	}
	id, err := branch.CommitChange(ctx, c, b.config.Clock.Now())
	if err != nil {
		return id, err
	}
	failpoint.Hit("commit local")
	if err := b.Copied(ctx, s, i); err != nil {
		return id, fmt.Errorf("commit %s is on this host; commit again, without changes: %w", id, err)
	}
	return id, nil
}

// Copied returns once the branch of an instance is on every host that keeps a copy of the state. It
// returns at once for a state on one host.
func (b *Branches) Copied(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID,
) error {
	k := b.config.Records.Keeper(s)
	if k.Modified == 0 && b.config.Records.Copies(s) < 2 {
		return nil
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	timer, stop := b.config.Clock.After(copyWaitMax)
	defer stop()
	for {
		news := b.config.Records.News()
		k, err := b.copyOnce(wait, s, i)
		if err == nil && b.config.Records.Keeper(s).Modified == k.Modified {
			return nil
		}
		if err == nil {
			continue // the copies have changed meanwhile
		}
		again, stopAgain := b.config.Clock.After(shipAgain)
		select {
		case <-ctx.Done():
			stopAgain()
			return ctx.Err()
		case <-timer:
			stopAgain()
			return err
		case <-news:
		case <-again:
		}
		stopAgain()
	}
}

// copyOnce sends the branch of an instance to all hosts that must have it, by the keeper's record
// that it returns.
func (b *Branches) copyOnce(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID,
) (world.Versioned[pando.Keeper], error) {
	k := b.config.Records.Keeper(s)
	switch {
	case k.Modified == 0:
		return k, fmt.Errorf("%w: control has not chosen the hosts yet", ErrUncopied)
	case !k.V.Whole():
		return k, fmt.Errorf("%w: %d of %d; `pando why %s --pending` names the reason",
			ErrUncopied, len(k.V.Copies), k.V.Want, s)
	}
	to := k.V.Receivers(b.config.Host)
	if len(to) == 0 {
		return k, nil
	}
	refs, err := state.RefsOf(b.config.Objects, s, i)
	if err != nil {
		return k, err
	}
	errs := make([]error, len(to))
	var all sync.WaitGroup
	for n, h := range to[:min(len(to), hostsPerCommit)] {
		all.Go(func() { errs[n] = b.ship(ctx, k.V, h, i, refs) })
	}
	all.Wait()
	return k, errors.Join(errs...)
}

// ship sends the refs of a branch with their objects to one host.
func (b *Branches) ship(ctx context.Context, k pando.Keeper, to pando.HostName,
	i pando.InstanceID, refs map[string]pando.ObjectID) error {
	ctx, cancel := context.WithTimeout(ctx, shipWaitMax)
	defer cancel()
	c := copyOf{k.Service, to}
	head := pando.Shipment{Service: k.Service, From: b.config.Host, Epoch: k.Epoch, Refs: refs, Instance: i}
	last := b.copies.last(c, i)
	if last.epoch == k.Epoch && maps.Equal(last.refs, refs) {
		return nil
	}
	err := b.send(ctx, c, head, state.Held{Commits: slices.Collect(maps.Values(last.refs))}, nil)
	if err == nil {
		b.copies.took(c, i, taken{k.Epoch, refs})
	} else {
		b.copies.took(c, i, taken{}) // the next shipment begins with a question
	}
	b.copies.tried(c, err, b.config.Clock.Now())
	return err
}

// send sends a shipment. If the receiver lacks a commit on which the objects rest, it sends again
// on the commits in the receipt.
func (b *Branches) send(ctx context.Context, c copyOf, head pando.Shipment,
	held state.Held, pace func(io.Writer) io.Writer) error {
	h, ok := b.config.Records.Reach(c.host)
	if !ok {
		return fmt.Errorf("%w: host %s, which keeps a copy of the state of %s, is away",
			pando.ErrUnreachable, c.host, c.service)
	}
	var want []pando.ObjectID
	for _, id := range head.Refs {
		want = append(want, id)
	}
	asked, ask := false, len(held.Commits) == 0 // first ask for its commits: it may have nearly all
	for range 3 {
		one := head
		var lacks state.Lacks
		if ask {
			one.Refs = nil
		} else {
			var err error
			if lacks, err = state.Missing(b.config.Objects, c.service, want, held); err != nil {
				return err
			}
			one.Have, one.Edge, one.Open = b.known(held.Commits), lacks.Edge, lacks.Open
			one.Seen, one.Asked = held.Edge, asked
		}
		got, err := b.config.Peers.ShipState(ctx, h, func(w io.Writer) error {
			if pace != nil {
				w = pace(w)
			}
			return state.WriteBundle(w, one, b.config.Objects, lacks.Objects)
		})
		if err == nil {
			err = b.heed(ctx, c, head, got)
		}
		if err != nil {
			return fmt.Errorf("send the state of %s to %s: %w", c.service, c.host, err)
		}
		if got.Taken && !ask {
			return nil
		}
		ask, asked, held = false, true, state.Held{Commits: got.Has, Edge: got.Edge}
	}
	return fmt.Errorf("%w: %s lacks the base of the commits of %s",
		pando.ErrConflict, c.host, c.service)
}

// heed returns the reason in a receipt to send again later. It notes a
// merge of the branch by another host.
func (b *Branches) heed(
	ctx context.Context, c copyOf, head pando.Shipment, got pando.Receipt,
) error {
	switch {
	case got.Gone:
		return fmt.Errorf("%w: it keeps no copy", pando.ErrConflict)
	case got.Epoch > head.Epoch:
		return fmt.Errorf("%w: its record of the copies is newer (%d after %d)",
			pando.ErrConflict, got.Epoch, head.Epoch)
	case got.Merged.IsZero() || head.Instance == "":
		return nil
	}
	if _, _, err := b.config.Objects.Object(got.Merged); err != nil {
		return nil // it is about commits that this host has lost
	}
	news, err := state.SetMerged(ctx, b.config.Objects, c.service, head.Instance, got.Merged)
	if err != nil || !news {
		return err
	}
	return fmt.Errorf("%w: another host has merged a part of the branch", pando.ErrConflict)
}

// known returns the commits that this host has too: only those made the shipment smaller.
func (b *Branches) known(all []pando.ObjectID) []pando.ObjectID {
	return slices.DeleteFunc(slices.Clone(all), func(id pando.ObjectID) bool {
		_, _, err := b.config.Objects.Object(id)
		return err != nil
	})
}

// last returns the last shipment that a host took from the branch of an instance.
func (c *copies) last(of copyOf, i pando.InstanceID) taken {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.had[of][i]
}

func (c *copies) took(of copyOf, i pando.InstanceID, t taken) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.had[of] == nil {
		c.had[of] = map[pando.InstanceID]taken{}
	}
	c.had[of][i] = t
}

// forget drops the last shipments of the branch of an instance.
func (c *copies) forget(i pando.InstanceID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, all := range c.had {
		delete(all, i)
		if len(all) == 0 {
			delete(c.had, of)
		}
	}
}

// tried keeps the time of the first of several failed shipments.
func (c *copies) tried(of copyOf, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch _, known := c.mute[of]; {
	case err == nil || errors.Is(err, pando.ErrConflict):
		delete(c.mute, of)
	case !known:
		c.mute[of] = now
	}
}

// silentSince returns since when a host takes nothing, or the zero time.
func (c *copies) silentSince(of copyOf) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mute[of]
}
