package records

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Intents are the asks that concern instances of this host. The agent follows no intents: it
// remembers those that it wrote or received with an answer, and reads others when it needs them.
// An intent is forgotten with its instance. The lock of the records guards the map.
type Intents map[pando.IntentID]world.Versioned[pando.Intent]

// note remembers an intent, unless a newer version is known.
func (m Intents) note(i pando.Intent, at pando.StoreRevision) {
	if m[i.ID].Modified <= at {
		m[i.ID] = world.Versioned[pando.Intent]{V: i, Modified: at}
	}
}

// NoteAll remembers the intents among records.
func (m Intents) NoteAll(all []pando.Record) error {
	for _, r := range all {
		if r.Key.Kind() != pando.KindIntent || r.Value == nil {
			continue
		}
		v, err := world.DecodeAny(r)
		if err != nil {
			return err
		}
		if i, ok := v.(pando.Intent); ok {
			m.note(i, r.Modified)
		}
	}
	return nil
}

// ForgetIntents forgets intents, so that the next look reads them from the store.
func (r *Records) ForgetIntents(ids ...pando.IntentID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.Intents, id)
	}
}

// BringIntents reads the intents of a service that are not known here. An intent that was trimmed
// stays unknown.
func (r *Records) BringIntents(
	ctx context.Context, s pando.ServiceKey, ids ...pando.IntentID,
) error {
	for _, id := range ids {
		r.mu.Lock()
		_, known := r.Intents[id]
		r.mu.Unlock()
		if known || id == "" {
			continue
		}
		if err := r.ReadIntents(ctx, pando.Intent{Service: s, ID: id}.Key(), nil); err != nil {
			return err
		}
	}
	return nil
}

// ReadIntents reads the intents under a prefix and remembers those that want accepts, or all.
func (r *Records) ReadIntents(
	ctx context.Context, prefix pando.Key, want func(pando.Intent) bool,
) error {
	now, err := r.registry.Snapshot(ctx, prefix)
	if err != nil {
		return err
	}
	found := Intents{}
	if err := found.NoteAll(now.Records); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range found {
		if want == nil || want(v.V) {
			r.Intents.note(v.V, v.Modified)
		}
	}
	return nil
}

// FollowIntent keeps an intent up to date until stop is called.
func (r *Records) FollowIntent(ctx context.Context, i pando.Intent) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = world.Follow(ctx, r.clock, r.registry, i.Key(), func(b pando.Batch, _ bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := r.Intents.NoteAll(b.Changes); err != nil {
				r.log.Error("an ask cannot be read", "error", err)
			}
			r.announce()
		})
	}()
	return func() { cancel(); <-ended }
}
