// Package members admits hosts to the cluster, gives them rights and slots, drains them, and removes
// them.
package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
	"pando.run/pando/world"
)

// Members admits hosts to the cluster and removes them.
type Members struct {
	mirror    *mirror.Mirror
	admitting sync.Mutex
}

// NewMembers returns the members of a cluster.
func NewMembers(m *mirror.Mirror) *Members { return &Members{mirror: m} }

// Admit makes a host a member, or returns the slot of an existing member. byToken means that the
// host has shown a token and no certificate. Such a host must be new or have the key of its
// admission. use is the use of a token that the admission costs, or nil. Errors: ErrExists,
// ErrNoRoom, ErrForbidden.
func (c *Members) Admit(
	ctx context.Context, m pando.Member, byToken bool, use *pando.TokenUse,
) (pando.Member, error) {
	if err := pando.CheckLabel("host", string(m.Name)); err != nil {
		return m, err
	}
	c.admitting.Lock()
	defer c.admitting.Unlock()
	for n := 0; ; n++ {
		t, err := c.admission(ctx, &m, byToken, use)
		if err != nil {
			return m, fmt.Errorf("admit host %s: %w", m.Name, err)
		}
		if _, err = c.mirror.CommitSurely(ctx, t); err == nil {
			return m, nil
		}
		if !errors.Is(err, pando.ErrConflict) || n == mirror.Attempts {
			return m, fmt.Errorf("admit host %s: %w", m.Name, err)
		}
	}
}

// stored reads records from the store instead of this control's copy, which may be older.
func (c *Members) stored(ctx context.Context, prefix pando.Key) (*world.World, error) {
	at, err := c.mirror.Registry.Snapshot(ctx, prefix)
	if err != nil {
		return nil, err
	}
	w := world.New()
	if err := w.Apply(at.Records, at.Revision); err != nil {
		c.mirror.Log.Error("a record cannot be read and is left out", "error", err)
	}
	return w, nil
}

// admission gives each slot once. Every server admits one host after another. The record of
// admissions orders the admissions of several servers.
func (c *Members) admission(
	ctx context.Context, m *pando.Member, byToken bool, use *pando.TokenUse,
) (pando.Txn, error) {
	so, seen, err := c.admissions(ctx) // before the members: a later slot then conflicts
	if err != nil {
		return pando.Txn{}, err
	}
	at, err := c.mirror.Registry.Snapshot(ctx, pando.Root+pando.Key(pando.KindMember)+"/")
	if err != nil {
		return pando.Txn{}, err
	}
	released, err := c.mirror.Registry.Snapshot(ctx, pando.RestingSlots)
	if err != nil {
		return pando.Txn{}, err
	}
	w := world.New()
	if err := errors.Join(w.Apply(at.Records, at.Revision),
		w.Apply(released.Records, released.Revision)); err != nil {
		return pando.Txn{}, err // a slot that cannot be read must not be given again
	}
	t := pando.Txn{}
	taken := map[int]bool{}
	for _, one := range w.Members {
		taken[one.V.Slot] = true
	}
	known, member := w.Members[m.Name]
	now := c.mirror.Clock.Now()
	switch {
	case member:
		if err := again(known.V, *m, byToken); err != nil {
			return t, err
		}
		if err := c.isAlone(ctx, known.V, *m); err != nil {
			return t, err
		}
		t.If = append(t.If, known.If())
		m.Slot, m.Since = known.V.Slot, known.V.Since
		// A server's host stays one when its agent renews, and keeps its key when its server starts.
		m.Server = m.Server || known.V.Server
		m.PublicKey = cmp.Or(m.PublicKey, known.V.PublicKey)
		// What operators set stays: the host itself knows none of it.
		m.Rights, m.Grants, m.Drain = known.V.Rights, known.V.Grants, known.V.Drain
	case !byToken && !m.Server:
		return t, pando.NotMember(m.Name)
	default:
		t.If = append(t.If, pando.Condition{Key: m.Key()})
		m.Since = now
		if m.Slot = freeSlot(w, taken); m.Slot >= pando.Slots() {
			return t, fmt.Errorf("%w: a cluster has at most %d hosts; `pando hosts rm NAME` takes out one "+
				"that does not return", pando.ErrNoRoom, pando.Slots())
		}
		if r, rests := w.SlotRests(m.Slot); rests {
			t.Delete = append(t.Delete, r.V.Key())
		}
		so.Hosts++
	}
	m.Renewed = now
	t.Put = []pando.Stored{*m}
	if use != nil {
		if so, err = so.Use(*use, now); err != nil {
			return t, err
		}
	}
	if use != nil || !member {
		t.If, t.Put = append(t.If, seen), append(t.Put, so)
	}
	return t, nil
}

// freeSlot returns the lowest slot that no host has or had, else the one that was released first. The
// instances of a removed host may run on, with the addresses of its slot.
func freeSlot(w *world.World, taken map[int]bool) int {
	oldest, found := world.Versioned[pando.Rest]{V: pando.Rest{Slot: pando.Slots()}}, false
	for n := range pando.Slots() {
		r, rests := w.SlotRests(n)
		switch {
		case taken[n]:
		case !rests:
			return n
		case !found || r.Modified < oldest.Modified:
			oldest, found = r, true
		}
	}
	return oldest.V.Slot
}

// admissions returns the record of admissions, and the condition that it has not changed.
func (c *Members) admissions(ctx context.Context) (a pando.Admissions, _ pando.Condition, _ error) {
	seen := pando.Condition{Key: pando.AdmissionsKey}
	now, err := c.mirror.Registry.Snapshot(ctx, seen.Key)
	if err != nil {
		return a, seen, err
	}
	for _, r := range now.Records {
		if r.Key == seen.Key {
			seen.Modified = r.Modified
			err = world.Decode(r, &a)
		}
	}
	return a, seen, err
}

// isAlone returns an error if a member seems to move while its agent is here at the old address:
// the asker is then a copy. After a real move, the old lease ends within pando.HostLease.
func (c *Members) isAlone(ctx context.Context, known, m pando.Member) error {
	if known.Server || known.Address == m.Address {
		return nil
	}
	w, err := c.stored(ctx, pando.HostKey(m.Name)) // and of hosts whose names begin with this one
	if err != nil {
		return err
	}
	h, here := w.Hosts[m.Name]
	if !here || h.V.Address != known.Address {
		return nil
	}
	return fmt.Errorf("%w: host %s is here at %s, and %s shows its certificate: if %[4]s is its "+
		"copy, run `pando down --purge` there and join again; if the host has moved, try again in %[5]s",
		pando.ErrExists, m.Name, known.Address, m.Address, pando.HostLease)
}

// again returns why a host may not have the name of a member, or nil if it is that member.
func again(known, m pando.Member, byToken bool) error {
	same := known.PublicKey == m.PublicKey && m.PublicKey != ""
	switch {
	case known.Server != m.Server && !same:
		return fmt.Errorf("%w: the name of the server's own host is "+
			"taken; choose another name with --host", pando.ErrExists)
	case byToken && !same:
		return fmt.Errorf("%w: a member of this name has another key; choose another name with --host, "+
			"or run `pando hosts rm %s` on the server's host if that host is no more", pando.ErrExists,
			m.Name)
	case !byToken && !same && !m.Server && known.PublicKey != "":
		return fmt.Errorf("%w: host %s is a member with another key", pando.ErrForbidden, m.Name)
	}
	return nil
}

// removeBatch is the number of instances that one transaction deletes, with at most one decision
// each.
const removeBatch = 400

// RemoveHost implements pando.Operators. The membership ends first, so that the host can write
// nothing more.
func (c *Members) RemoveHost(
	ctx context.Context, h pando.HostName, force bool, by pando.Asker,
) error {
	c.admitting.Lock()
	defer c.admitting.Unlock()
	w, err := c.stored(ctx, pando.Root)
	if err != nil {
		return fmt.Errorf("remove host %s: %w", h, err)
	}
	m, member := w.Members[h]
	_, here := w.Hosts[h]
	on := w.On(h)
	if !member && !here && len(on) == 0 {
		return fmt.Errorf("host %s: %w; `pando hosts` lists those there are", h, pando.ErrNotFound)
	}
	if err := removable(w, m.V, here, len(on), force); err != nil {
		return fmt.Errorf("remove host %s: %w", h, err)
	}
	t := pando.Txn{Delete: []pando.Key{pando.HostKey(h), pando.LeaderKey("host-" + string(h))}}
	if member {
		t.If, t.Delete = []pando.Condition{m.If()}, append(t.Delete, m.V.Key())
		t.Put = []pando.Stored{pando.Rest{Slot: m.V.Slot, Host: h, At: c.mirror.Clock.Now()}}
	}
	if _, err := c.mirror.CommitSurely(ctx, t); err != nil {
		return fmt.Errorf("remove host %s: %w", h, err)
	}
	for n := 1; ; n++ { // control may have placed one meanwhile
		if w, err = c.stored(ctx, pando.Root+pando.Key(pando.KindInstance)+"/"); err != nil {
			return fmt.Errorf("forget the instances of host %s: %w; run the command again", h, err)
		}
		if on = w.On(h); len(on) == 0 {
			return nil
		}
		err := c.forget(ctx, h, on[:min(len(on), removeBatch)], by)
		if n > mirror.Attempts+len(on)/removeBatch {
			err = errors.Join(err, fmt.Errorf("%w: instances are still placed on it", pando.ErrConflict))
		}
		if err != nil {
			return fmt.Errorf("forget the instances of host %s: %w; run the command again", h, err)
		}
	}
}

// removable returns why a host may not be removed, or nil.
func removable(w *world.World, m pando.Member, here bool, instances int, force bool) error {
	switch {
	case m.Server:
		return fmt.Errorf("%w: the server of the cluster runs there; one of several goes with "+
			"`pando servers rm %s`", pando.ErrRefused, m.Name)
	case force:
		return nil
	case here && instances > 0:
		return fmt.Errorf("%w: it is here with %d instances: `pando down` there takes them out; "+
			"--force leaves them running there without the cluster", pando.ErrRefused, instances)
	}
	if only := onlyOn(w, m.Name); len(only) > 0 {
		return fmt.Errorf("%w: it has %s, which the cluster loses with it: --force accepts that",
			pando.ErrRefused, strings.Join(only, ", and "))
	}
	return nil
}

// onlyOn lists what the cluster has on one host only, with the names of the services.
func onlyOn(w *world.World, h pando.HostName) (out []string) {
	var states, ordinals, removed, living []string
	for s, head := range w.Heads {
		if head.V.Host == h {
			states = append(states, s.String())
		}
	}
	for s, v := range w.Volumes {
		if _, lives := w.Services[s]; v.V.Host == h && !lives {
			removed = append(removed, s.String())
		}
		if r := v.V.Roll; r != nil && slices.Contains(r.Hosts, h) {
			removed = append(removed, s.String())
		}
	}
	for s, v := range w.Services {
		if r := v.V.Roll; r != nil && slices.Contains(r.Hosts, h) {
			ordinals = append(ordinals, s.String())
		} else if r == nil && hasVolumesOn(w, v.V, h) {
			living = append(living, s.String())
		}
	}
	line := func(what string, names []string) {
		if len(names) > 0 {
			slices.Sort(names)
			names = slices.Compact(names)
			out = append(out, fmt.Sprintf(what, len(names))+" ("+pando.Few(names)+")")
		}
	}
	line("the states of %d services", states)
	line("volumes of ordinals of %d stateful services", ordinals)
	line("the volumes of %d services", living)
	line("the volumes of %d removed services", removed)
	return out
}

// hasVolumesOn reports whether a service has volumes on a host: on its home, or near its instances
// there. A service that never ran keeps those of a removed one of its name.
func hasVolumesOn(w *world.World, s pando.Service, h pando.HostName) bool {
	for _, n := range []int{s.Current, s.Target} {
		if spec, ok := w.SpecOf(s.ServiceKey, n); ok && len(spec.Volumes) > 0 {
			return s.Home == h || w.HostsOf(s.ServiceKey)[h] ||
				s.Home == "" && w.Volumes[s.ServiceKey].V.Host == h
		}
	}
	return false
}

// forget deletes the records of instances on a removed host, with one decision per service.
func (c *Members) forget(
	ctx context.Context, h pando.HostName, on []pando.Instance, by pando.Asker,
) error {
	t := pando.Txn{}
	lost := map[pando.ServiceKey]int{}
	for _, i := range on {
		t.Delete = append(t.Delete, i.Key())
		lost[i.Service]++
	}
	now := c.mirror.Clock.Now()
	for _, s := range slices.SortedFunc(maps.Keys(lost), pando.ServiceKey.Compare) {
		t.Put = append(t.Put, pando.Decision{
			ID: c.mirror.IDs.Sequential(now), Service: s, Kind: pando.DecidedHostLost, By: by, At: now,
			Reason: fmt.Sprintf("host %s was removed from the cluster, with %d instances", h, lost[s]),
		})
	}
	_, err := c.mirror.CommitSurely(ctx, t)
	return err
}
