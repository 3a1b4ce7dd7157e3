package branch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"pando.run/pando"
	"pando.run/pando/state"
	"pando.run/pando/test/failpoint"
)

// Bring makes main whole on this host. It fetches missing objects from a host that keeps a copy.
func (b *Branches) Bring(ctx context.Context, s pando.ServiceKey, main pando.ObjectID) error {
	k := b.config.Records.Keeper(s)
	if k.Modified == 0 || main.IsZero() || b.hasMain(k.V, main) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bringWaitMax)
	defer cancel()
	b.copies.whole.RLock()
	defer b.copies.whole.RUnlock()
	has, err := state.Has(b.config.Objects, s, pando.ObjectID{})
	if err != nil {
		return err
	}
	q := pando.StateWanted{Service: s, Want: main, Have: has.Commits, Edge: has.Edge}
	from := append([]pando.HostName{k.V.Host}, k.V.Copies...)
	errs := []error{fmt.Errorf("%w: main of %s is on no host that answers", pando.ErrUnreachable, s)}
	for _, name := range from {
		h, here := b.config.Records.Reach(name)
		if !here || name == b.config.Host {
			continue
		}
		err := b.fetch(ctx, h, q)
		if err == nil {
			b.copies.setMain(s, main)
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *copies) setMain(s pando.ServiceKey, main pando.ObjectID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.main[s] = main
}

// hasMain reports whether main is whole on this host. A copy receives every main before it is one.
func (b *Branches) hasMain(k pando.Keeper, main pando.ObjectID) bool {
	b.copies.mu.Lock()
	seen := b.copies.main[k.Service]
	b.copies.mu.Unlock()
	if seen == main {
		return true
	}
	if !slices.Contains(k.Copies, b.config.Host) {
		return false
	}
	_, _, err := b.config.Objects.Object(main)
	return err == nil
}

func (b *Branches) fetch(ctx context.Context, h pando.Host, q pando.StateWanted) error {
	body, err := b.config.Peers.FetchState(ctx, h, q)
	if err != nil {
		return err
	}
	defer body.Close()
	bundle, err := state.ReadBundle(body)
	if err != nil {
		return fmt.Errorf("fetch the state of %s from %s: %w", q.Service, h.Name, err)
	}
	if bundle.Service != q.Service || bundle.Instance != "" || len(bundle.Refs) > 0 {
		return fmt.Errorf("%w: %s sent another state than that of %s",
			pando.ErrInvalid, h.Name, q.Service)
	}
	bundle.Refs = map[string]pando.ObjectID{state.MainRef: q.Want}
	if err := bundle.Store(ctx, b.config.Objects); err != nil {
		return fmt.Errorf("fetch the state of %s from %s: %w", q.Service, h.Name, err)
	}
	return nil
}

// GiveState writes a commit, with all that it reaches, for a host without it.
func (b *Branches) GiveState(_ context.Context, q pando.StateWanted, w io.Writer) error {
	lacks, err := state.Missing(b.config.Objects, q.Service, []pando.ObjectID{q.Want},
		state.Held{Commits: q.Have, Edge: q.Edge})
	if err != nil {
		return err
	}
	head := pando.Shipment{
		Service: q.Service, From: b.config.Host, Edge: lacks.Edge, Open: lacks.Open,
	}
	return state.WriteBundle(w, head, b.config.Objects, lacks.Objects)
}

// TakeState stores a shipment of another host. It reads the epoch of the answer after the objects
// are durable: a sender with an older record learns that there are more copies to send to.
func (b *Branches) TakeState(
	ctx context.Context, from pando.HostName, r io.Reader,
) (got pando.Receipt, err error) {
	bundle, err := state.ReadBundle(r)
	if err != nil {
		return got, err
	}
	s := bundle.Service
	b.copies.whole.RLock() // see release
	defer b.copies.whole.RUnlock()
	k := b.config.Records.Keeper(s)
	got.Epoch = k.V.Epoch
	switch {
	case from != bundle.From || !bundle.Ours(k.V.Holds(from)):
		return got, fmt.Errorf("%w: host %s sends refs of others", pando.ErrForbidden, from)
	case k.V.Epoch < bundle.Epoch:
		return got, fmt.Errorf("%w: this host has not read the newest record of the copies",
			pando.ErrNotReady)
	case !k.V.Holds(b.config.Host):
		got.Gone, got.Epoch = true, 0
		return got, nil
	case !k.V.Holds(from) && !b.config.Records.Seated(s, from):
		return got, fmt.Errorf("%w: host %s has no instance of %s", pando.ErrForbidden, from, s)
	}
	if err := b.enroll(ctx, k.V); err != nil {
		return got, err
	}
	var main pando.ObjectID // whole on a copy, and perhaps in parts on a host that joins
	if slices.Contains(k.V.Copies, b.config.Host) {
		main = b.config.Records.Main(s).V.Commit
	}
	has, err := state.Has(b.config.Objects, s, main)
	if err != nil {
		return got, err
	}
	lacks := slices.ContainsFunc(bundle.Have,
		func(id pando.ObjectID) bool { return !slices.Contains(has.Commits, id) })
	lacks = lacks || bundle.Asked && slices.ContainsFunc(has.Edge, // a trim has cut more since
		func(id pando.ObjectID) bool { return !slices.Contains(bundle.Seen, id) })
	if bundle.Instance != "" {
		if got.Merged, err = state.Merged(b.config.Objects, s, bundle.Instance); err != nil {
			return got, err
		}
	}
	if len(bundle.Refs) == 0 || lacks {
		got.Has, got.Edge = has.Commits, has.Edge
		return got, nil
	}
	if err := bundle.Store(ctx, b.config.Objects); err != nil {
		return got, err
	}
	failpoint.Hit("copy stored")
	got.Taken, got.Epoch = true, b.config.Records.Keeper(s).V.Epoch
	return got, nil
}

// enroll begins a new copy: it drops the branches of an earlier one (see state.Enroll).
func (b *Branches) enroll(ctx context.Context, k pando.Keeper) error {
	since := k.Since[b.config.Host]
	if since == 0 {
		return nil
	}
	b.copies.enrolling.Lock()
	defer b.copies.enrolling.Unlock()
	return state.Enroll(ctx, b.config.Objects, k.Service, since, func(i pando.InstanceID) bool {
		return b.config.Records.Alive(i) || b.isOpen(i) || b.seatedHere(k.Service, i)
	})
}
