package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
)

// Unread is a record that this build cannot read: of a newer layout, with an unknown phase, or
// damaged. The world keeps the last value that it could read, if any. Such a record freezes its
// service: nothing about it is decided, removed or overwritten until the record can be read.
type Unread struct {
	Key      pando.Key
	Modified pando.StoreRevision
	Err      error
}

// freezes lists the kinds whose unreadable records freeze their service. Intents and decisions are
// history: they are only left out.
var freezes = map[pando.Kind]bool{
	pando.KindService: true, pando.KindRevision: true, pando.KindInstance: true, pando.KindHead: true,
	pando.KindEndpoints: true, pando.KindKeeper: true,
}

// illegible holds the records that cannot be read.
type illegible struct {
	unread map[pando.Key]Unread
	frozen map[pando.ServiceKey]map[pando.Key]bool // the unread records that freeze it
}

func newIllegible() illegible {
	return illegible{map[pando.Key]Unread{}, map[pando.ServiceKey]map[pando.Key]bool{}}
}

// Next returns an empty world that replaces w after a new snapshot. Where the snapshot has a record
// that this build cannot read, the new world keeps the value of w.
func (w *World) Next() *World {
	next := New()
	next.former, next.scoped = w.byKey, w.scoped
	next.clock = w.clock
	return next
}

// misread notes a record that cannot be read, and keeps its last value.
func (w *World) misread(r pando.Record, err error) {
	w.unread[r.Key] = Unread{r.Key, r.Modified, err}
	if s, ok := r.Key.Service(); ok && freezes[r.Key.Kind()] {
		if w.frozen[s] == nil {
			w.frozen[s] = map[pando.Key]bool{}
		}
		w.frozen[s][r.Key] = true
	}
	if _, known := w.byKey[r.Key]; known {
		return
	}
	if was, ok := w.former[r.Key]; ok {
		if _, taken := w.namesake(was.value); !taken {
			w.put(was.value, was.created, was.modified)
		}
	}
}

// readable forgets that the record of a key could not be read.
func (w illegible) readable(k pando.Key, at pando.StoreRevision) {
	if u, ok := w.unread[k]; !ok || u.Modified > at {
		return
	}
	delete(w.unread, k)
	if s, ok := k.Service(); ok {
		if delete(w.frozen[s], k); len(w.frozen[s]) == 0 {
			delete(w.frozen, s)
		}
	}
}

// Unread returns the records that cannot be read, in key order.
func (w illegible) Unread() []Unread {
	out := make([]Unread, 0, len(w.unread))
	for _, k := range slices.Sorted(maps.Keys(w.unread)) {
		out = append(out, w.unread[k])
	}
	return out
}

// Frozen returns why nothing may be decided about a service, or nil: one of its records cannot be
// read.
func (w illegible) Frozen(s pando.ServiceKey) error {
	keys := w.frozen[s]
	if len(keys) == 0 {
		return nil
	}
	first := slices.Min(slices.Collect(maps.Keys(keys)))
	return fmt.Errorf("%w: %w; what runs stays as it is until the record can be read",
		pando.ErrFrozen, w.unread[first].Err)
}

// FrozenServices returns the services with a record that cannot be read, in order. They include
// services without a readable record of their own.
func (w illegible) FrozenServices() []pando.ServiceKey {
	return slices.SortedFunc(maps.Keys(w.frozen), pando.ServiceKey.Compare)
}

// Blind returns why no choice over all records of a kind may be made, or nil: one of them cannot be
// read. A free address is such a choice.
func (w illegible) Blind(kind pando.Kind) error {
	for _, u := range w.Unread() {
		if u.Key.Kind() == kind {
			return fmt.Errorf("%w: %w", pando.ErrFrozen, u.Err)
		}
	}
	return nil
}

// IsUnread reports whether the record of a key exists and cannot be read.
func (w illegible) IsUnread(k pando.Key) bool { _, ok := w.unread[k]; return ok }

// Conceals reports whether a record that cannot be read may be that of an instance.
func (w illegible) Conceals(i pando.InstanceID) bool {
	for k := range w.unread {
		if k.Kind() == pando.KindInstance && strings.HasSuffix(string(k), "/"+string(i)) {
			return true
		}
	}
	return false
}

// Spares returns nil if a transaction leaves every unreadable record as it is, else the reason to
// refuse the transaction.
func (w illegible) Spares(t pando.Txn) error {
	if len(w.unread) == 0 {
		return nil
	}
	keys := slices.Clone(t.Delete)
	for _, v := range t.Put {
		keys = append(keys, v.Key())
	}
	for _, k := range keys {
		if u, ok := w.unread[k]; ok {
			return fmt.Errorf("%w: %w", pando.ErrFrozen, u.Err)
		}
	}
	return nil
}
