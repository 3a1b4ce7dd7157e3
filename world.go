package pando

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// World is everything that the store says, as one process has seen it: the input of every decision.
// It is changed by Apply alone.
type World struct {
	Services  map[ServiceKey]Versioned[Service]
	Revisions map[ServiceKey]map[int]Versioned[Revision]
	Instances map[InstanceID]Versioned[Instance]
	Intents   map[IntentID]Versioned[Intent]
	Decisions map[string]Versioned[Decision]
	Heads     map[ServiceKey]Versioned[StateHead]
	Hosts     map[HostName]Versioned[Host]   // whose agents have their lease
	Members   map[HostName]Versioned[Member] // that were admitted
	Seen      StoreRevision                  // of the newest commit applied
	byKey     map[Key]noted
	gone      map[Key]StoreRevision     // deleted; kept until every older message has been seen
	intents   map[ServiceKey][]IntentID // of each service, in order
	decisions map[ServiceKey][]string   // likewise
	ofService rosters[ServiceKey]
	onHost    rosters[HostName]
}

// noted is what the world knows of one key, so that a late message never brings back an older state.
type noted struct {
	value    Stored
	modified StoreRevision
}

// Versioned is a value with the store revision of its last write, for conditions.
type Versioned[T Stored] struct {
	V        T
	Modified StoreRevision
}

// If is the condition that the value has not changed.
func (v Versioned[T]) If() Condition { return Condition{Key: v.V.Key(), Modified: v.Modified} }

// NewWorld returns an empty world.
func NewWorld() *World {
	return &World{
		Services:  map[ServiceKey]Versioned[Service]{},
		Revisions: map[ServiceKey]map[int]Versioned[Revision]{},
		Instances: map[InstanceID]Versioned[Instance]{},
		Intents:   map[IntentID]Versioned[Intent]{},
		Decisions: map[string]Versioned[Decision]{},
		Heads:     map[ServiceKey]Versioned[StateHead]{},
		Hosts:     map[HostName]Versioned[Host]{},
		Members:   map[HostName]Versioned[Member]{},
		byKey:     map[Key]noted{},
		gone:      map[Key]StoreRevision{},
		intents:   map[ServiceKey][]IntentID{},
		decisions: map[ServiceKey][]string{},
		ofService: rosters[ServiceKey]{},
		onHost:    rosters[HostName]{},
	}
}

// Apply takes over what changed. A record that cannot be read is left out and named in the error; the others count.
func (w *World) Apply(changes []Record, at StoreRevision) error {
	var errs []error
	for _, r := range changes {
		if err := w.apply(r); err != nil {
			errs = append(errs, err)
		}
	}
	w.Seen = max(w.Seen, at)
	for k, deleted := range w.gone {
		if deleted <= w.Seen {
			delete(w.gone, k)
		}
	}
	return errors.Join(errs...)
}

// Committed takes over a transaction that this process has just committed, so that its next decision need not wait for
// the watch to tell it what it did.
func (w *World) Committed(t Txn, at StoreRevision) {
	for _, v := range t.Put {
		w.put(v, at)
	}
	for _, k := range t.Delete {
		w.forget(k, at)
	}
}

// Knows says whether a record is no news: this process wrote it itself, say, and took it over then.
func (w *World) Knows(r Record) bool {
	if r.Value == nil {
		at, ok := w.gone[r.Key]
		return ok && at >= r.Modified
	}
	n, ok := w.byKey[r.Key]
	return ok && n.modified >= r.Modified
}

func (w *World) apply(r Record) error {
	if w.Knows(r) {
		return nil
	}
	if r.Value == nil {
		w.forget(r.Key, r.Modified)
		return nil
	}
	v, err := DecodeAny(r)
	if err != nil || v == nil {
		return err
	}
	if other, taken := w.namesake(v); taken {
		return fmt.Errorf("record %s: %w: its name is that of %s", r.Key, ErrExists, other)
	}
	w.put(v, r.Modified)
	return nil
}

// namesake is the record under another key that has the same name: names of instances, intents and decisions are unique.
func (w *World) namesake(v Stored) (other Key, taken bool) {
	switch v := v.(type) {
	case Instance:
		other = w.Instances[v.ID].V.Key()
		_, taken = w.Instances[v.ID]
	case Intent:
		other = w.Intents[v.ID].V.Key()
		_, taken = w.Intents[v.ID]
	case Decision:
		other = w.Decisions[v.ID].V.Key()
		_, taken = w.Decisions[v.ID]
	}
	return other, taken && other != v.Key()
}

// DecodeAny reads a record of any kind; nil for a kind that is not a noun (a leader's key).
func DecodeAny(r Record) (Stored, error) {
	switch r.Key.Kind() {
	case KindService:
		return decode[Service](r)
	case KindRevision:
		return decode[Revision](r)
	case KindInstance:
		return decode[Instance](r)
	case KindIntent:
		return decode[Intent](r)
	case KindDecision:
		return decode[Decision](r)
	case KindHead:
		return decode[StateHead](r)
	case KindHost:
		return decode[Host](r)
	case KindMember:
		return decode[Member](r)
	}
	return nil, nil
}

// decode believes the key: a member may write what is below its own keys, and must not speak for others in the value.
func decode[T Stored](r Record) (Stored, error) {
	var v T
	if err := Decode(r, &v); err != nil {
		return v, err
	}
	if v.Key() != r.Key {
		return v, fmt.Errorf("record %s: %w: its value is that of %s", r.Key, ErrInvalid, v.Key())
	}
	if h, ok := any(v).(Host); ok {
		if err := h.check(); err != nil {
			return v, fmt.Errorf("record %s: %w", r.Key, err)
		}
	}
	return v, nil
}

func (w *World) put(v Stored, at StoreRevision) {
	if w.byKey[v.Key()].modified > at || w.gone[v.Key()] > at {
		return
	}
	w.byKey[v.Key()] = noted{value: v, modified: at}
	switch v := v.(type) {
	case Service:
		w.Services[v.ServiceKey] = Versioned[Service]{v, at}
	case Revision:
		if w.Revisions[v.Service] == nil {
			w.Revisions[v.Service] = map[int]Versioned[Revision]{}
		}
		w.Revisions[v.Service][v.Number] = Versioned[Revision]{v, at}
	case Instance:
		w.enlist(Versioned[Instance]{v, at})
	case Intent:
		w.Intents[v.ID] = Versioned[Intent]{v, at}
		list(w.intents, v.Service, v.ID)
	case Decision:
		w.Decisions[v.ID] = Versioned[Decision]{v, at}
		list(w.decisions, v.Service, v.ID)
	case StateHead:
		w.Heads[v.Service] = Versioned[StateHead]{v, at}
	case Host:
		w.Hosts[v.Name] = Versioned[Host]{v, at}
	case Member:
		w.Members[v.Name] = Versioned[Member]{v, at}
	}
}

func (w *World) forget(k Key, at StoreRevision) {
	n := w.byKey[k]
	if n.modified > at {
		return
	}
	delete(w.byKey, k)
	w.gone[k] = max(w.gone[k], at)
	switch v := n.value.(type) {
	case Service:
		delete(w.Services, v.ServiceKey)
	case Revision:
		delete(w.Revisions[v.Service], v.Number)
		if len(w.Revisions[v.Service]) == 0 {
			delete(w.Revisions, v.Service)
		}
	case Instance:
		w.delist(v)
	case Intent:
		delete(w.Intents, v.ID)
		unlist(w.intents, v.Service, v.ID)
	case Decision:
		delete(w.Decisions, v.ID)
		unlist(w.decisions, v.Service, v.ID)
	case StateHead:
		delete(w.Heads, v.Service)
	case Host:
		delete(w.Hosts, v.Name)
	case Member:
		delete(w.Members, v.Name)
	}
}

func byBirth(a, b Instance) int {
	return cmp.Or(a.Born.Compare(b.Born), cmp.Compare(a.ID, b.ID))
}

// IntentsOf returns the intents of a service in the order in which they were asked.
func (w *World) IntentsOf(s ServiceKey) []Intent { return listed(w.Intents, w.intents[s]) }

// DecisionsOf returns the decisions about a service, oldest first.
func (w *World) DecisionsOf(s ServiceKey) []Decision { return listed(w.Decisions, w.decisions[s]) }

// list puts a name where it belongs among those of its service. Names of what happens later are greater: it is the end nearly always.
func list[N cmp.Ordered](names map[ServiceKey][]N, s ServiceKey, n N) {
	if at, there := slices.BinarySearch(names[s], n); !there {
		names[s] = slices.Insert(names[s], at, n)
	}
}

func unlist[N cmp.Ordered](names map[ServiceKey][]N, s ServiceKey, n N) {
	if at, there := slices.BinarySearch(names[s], n); there {
		names[s] = slices.Delete(names[s], at, at+1)
	}
	if len(names[s]) == 0 {
		delete(names, s)
	}
}

func listed[N comparable, T Stored](all map[N]Versioned[T], names []N) []T {
	if len(names) == 0 {
		return nil
	}
	out := make([]T, len(names), len(names)+1) // the caller may have one more
	for n, name := range names {
		out[n] = all[name].V
	}
	return out
}

// SpecOf returns the spec of one revision of a service.
func (w *World) SpecOf(s ServiceKey, revision int) (Spec, bool) {
	r, ok := w.Revisions[s][revision]
	return r.V.Spec, ok
}

// Names returns the services in order, for decisions that must not depend on the order of a map.
func (w *World) Names() []ServiceKey {
	return slices.SortedFunc(maps.Keys(w.Services), ServiceKey.Compare)
}
