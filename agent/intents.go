package agent

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/world"
)

// intents are the asks that concern instances of this host. The agent follows no intents: it
// remembers those that it wrote or received with an answer, and reads others when it needs them.
// An intent is forgotten with its instance. The lock of the records guards the map.
type intents map[pando.IntentID]world.Versioned[pando.Intent]

// note remembers an intent, unless a newer version is known. The caller holds the lock.
func (m intents) note(i pando.Intent, at pando.StoreRevision) {
	if m[i.ID].Modified <= at {
		m[i.ID] = world.Versioned[pando.Intent]{V: i, Modified: at}
	}
}

// noteAll remembers the intents among records. The caller holds the lock.
func (m intents) noteAll(all []pando.Record) error {
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

// forgetIntents forgets intents, so that the next look reads them from the store.
func (r *records) forgetIntents(ids ...pando.IntentID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.intents, id)
	}
}

// bringIntents reads the intents of a service that are not known here. An intent that was trimmed
// stays unknown.
func (r *records) bringIntents(
	ctx context.Context, s pando.ServiceKey, ids ...pando.IntentID,
) error {
	for _, id := range ids {
		r.mu.Lock()
		_, known := r.intents[id]
		r.mu.Unlock()
		if known || id == "" {
			continue
		}
		if err := r.readIntents(ctx, pando.Intent{Service: s, ID: id}.Key(), nil); err != nil {
			return err
		}
	}
	return nil
}

// readIntents reads the intents under a prefix and remembers those that want accepts, or all.
func (r *records) readIntents(
	ctx context.Context, prefix pando.Key, want func(pando.Intent) bool,
) error {
	now, err := r.config.Registry.Snapshot(ctx, prefix)
	if err != nil {
		return err
	}
	found := intents{}
	if err := found.noteAll(now.Records); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range found {
		if want == nil || want(v.V) {
			r.intents.note(v.V, v.Modified)
		}
	}
	return nil
}

// followIntent keeps an intent up to date until stop is called.
func (r *records) followIntent(ctx context.Context, i pando.Intent) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = world.Follow(ctx, r.config.Clock, r.config.Registry, i.Key(), func(b pando.Batch, _ bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := r.intents.noteAll(b.Changes); err != nil {
				r.config.Log.Error("an ask cannot be read", "error", err)
			}
			r.announce()
		})
	}()
	return func() { cancel(); <-ended }
}
