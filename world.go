package pando

import (
	"cmp"
	"errors"
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
	Hosts     map[HostName]Versioned[Host]
	Seen      StoreRevision // of the newest commit applied
	byKey     map[Key]any
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
		byKey:     map[Key]any{},
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
	return errors.Join(errs...)
}

func (w *World) apply(r Record) error {
	if r.Value == nil {
		w.forget(r.Key)
		return nil
	}
	switch r.Key.Kind() {
	case KindService:
		return take(w, r, func(v Versioned[Service]) { w.Services[v.V.ServiceKey] = v })
	case KindRevision:
		return take(w, r, func(v Versioned[Revision]) {
			if w.Revisions[v.V.Service] == nil {
				w.Revisions[v.V.Service] = map[int]Versioned[Revision]{}
			}
			w.Revisions[v.V.Service][v.V.Number] = v
		})
	case KindInstance:
		return take(w, r, func(v Versioned[Instance]) { w.Instances[v.V.ID] = v })
	case KindIntent:
		return take(w, r, func(v Versioned[Intent]) { w.Intents[v.V.ID] = v })
	case KindDecision:
		return take(w, r, func(v Versioned[Decision]) { w.Decisions[v.V.ID] = v })
	case KindHead:
		return take(w, r, func(v Versioned[StateHead]) { w.Heads[v.V.Service] = v })
	case KindHost:
		return take(w, r, func(v Versioned[Host]) { w.Hosts[v.V.Name] = v })
	}
	return nil
}

func take[T Stored](w *World, r Record, put func(Versioned[T])) error {
	var v T
	if err := Decode(r, &v); err != nil {
		return err
	}
	put(Versioned[T]{V: v, Modified: r.Modified})
	w.byKey[r.Key] = v
	return nil
}

func (w *World) forget(k Key) {
	switch v := w.byKey[k].(type) {
	case Service:
		delete(w.Services, v.ServiceKey)
	case Revision:
		delete(w.Revisions[v.Service], v.Number)
		if len(w.Revisions[v.Service]) == 0 {
			delete(w.Revisions, v.Service)
		}
	case Instance:
		delete(w.Instances, v.ID)
	case Intent:
		delete(w.Intents, v.ID)
	case Decision:
		delete(w.Decisions, v.ID)
	case StateHead:
		delete(w.Heads, v.Service)
	case Host:
		delete(w.Hosts, v.Name)
	}
	delete(w.byKey, k)
}

// Of returns the instances of a service, oldest first.
func (w *World) Of(s ServiceKey) []Instance {
	var out []Instance
	for _, v := range w.Instances {
		if v.V.Service == s {
			out = append(out, v.V)
		}
	}
	slices.SortFunc(out, byBirth)
	return out
}

// On returns the instances of a host, oldest first.
func (w *World) On(h HostName) []Instance {
	var out []Instance
	for _, v := range w.Instances {
		if v.V.Host == h {
			out = append(out, v.V)
		}
	}
	slices.SortFunc(out, byBirth)
	return out
}

func byBirth(a, b Instance) int {
	return cmp.Or(a.Born.Compare(b.Born), cmp.Compare(a.ID, b.ID))
}

// IntentsOf returns the intents of a service in the order in which they were asked.
func (w *World) IntentsOf(s ServiceKey) []Intent {
	var out []Intent
	for _, v := range w.Intents {
		if v.V.Service == s {
			out = append(out, v.V)
		}
	}
	slices.SortFunc(out, func(a, b Intent) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// DecisionsOf returns the decisions about a service, oldest first.
func (w *World) DecisionsOf(s ServiceKey) []Decision {
	var out []Decision
	for _, v := range w.Decisions {
		if v.V.Service == s {
			out = append(out, v.V)
		}
	}
	slices.SortFunc(out, func(a, b Decision) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// SpecOf returns the spec of one revision of a service.
func (w *World) SpecOf(s ServiceKey, revision int) (Spec, bool) {
	r, ok := w.Revisions[s][revision]
	return r.V.Spec, ok
}

// Names returns the services in order, for decisions that must not depend on the order of a map.
func (w *World) Names() []ServiceKey {
	return slices.SortedFunc(maps.Keys(w.Services), func(a, b ServiceKey) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
	})
}
