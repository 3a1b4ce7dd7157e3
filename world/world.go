package world

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// World is one process's view of the store: the input of every decision. Only Apply and Committed
// change it.
type World struct {
	Services  map[pando.ServiceKey]Versioned[pando.Service]
	Revisions map[pando.ServiceKey]map[int]Versioned[pando.Revision]
	Instances map[pando.InstanceID]Versioned[pando.Instance]
	Intents   map[pando.IntentID]Versioned[pando.Intent]
	Decisions map[string]Versioned[pando.Decision]
	Heads     map[pando.ServiceKey]Versioned[pando.StateHead]
	Keepers   map[pando.ServiceKey]Versioned[pando.Keeper]
	Endpoints map[pando.ServiceKey]Versioned[pando.Endpoints]
	Volumes   map[pando.ServiceKey]Versioned[pando.VolumeHome] // of removed services
	Secrets   map[pando.SecretKey]Versioned[pando.Secret]
	Tenants   map[pando.Tenant]Versioned[access.Account]
	Tokens    map[access.TokenKey]Versioned[access.Token]
	Hosts     map[pando.HostName]Versioned[pando.Host]   // their agents hold their leases
	Members   map[pando.HostName]Versioned[pando.Member] // admitted to the cluster
	Drained   map[pando.HostName]bool                    // members that an operator drains
	Cluster   Versioned[pando.Cluster]                   // the store's record of itself
	Audit     Audit
	Bills     map[pando.Key]Versioned[access.Bill]
	Marks     map[pando.HostName]Versioned[pando.WorkMark] // "": of decisions
	Seen      pando.StoreRevision                          // the newest commit applied
	byKey     map[pando.Key]noted
	// gone holds deleted records, until every older message has arrived.
	gone      map[pando.Key]pando.StoreRevision
	scoped    bool                                        // see NewScoped
	intents   map[pando.ServiceKey][]line[pando.IntentID] // of each service, in the store's order
	decisions map[pando.ServiceKey][]line[string]         // likewise
	ofService rosters[pando.ServiceKey]
	onHost    rosters[pando.HostName]
	aliases   aliases
	illegible
	former map[pando.Key]noted // until the first Apply: see Next
	clock  moments
	ledgers
}

// noted is the world's record of one key, so that a late message never brings back an older state.
type noted struct {
	value    pando.Stored
	created  pando.StoreRevision
	modified pando.StoreRevision
	since    time.Time // on this process's clock: see Since
}

// Versioned is a value with the store revision of its last write, for conditions.
type Versioned[T pando.Stored] struct {
	V        T
	Modified pando.StoreRevision
}

// If returns the condition that the value has not changed.
func (v Versioned[T]) If() pando.Condition {
	return pando.Condition{Key: v.V.Key(), Modified: v.Modified}
}

// New returns an empty world.
func New() *World {
	return &World{
		Services:  map[pando.ServiceKey]Versioned[pando.Service]{},
		Revisions: map[pando.ServiceKey]map[int]Versioned[pando.Revision]{},
		Instances: map[pando.InstanceID]Versioned[pando.Instance]{},
		Intents:   map[pando.IntentID]Versioned[pando.Intent]{},
		Decisions: map[string]Versioned[pando.Decision]{},
		Heads:     map[pando.ServiceKey]Versioned[pando.StateHead]{},
		Keepers:   map[pando.ServiceKey]Versioned[pando.Keeper]{},
		Endpoints: map[pando.ServiceKey]Versioned[pando.Endpoints]{},
		Volumes:   map[pando.ServiceKey]Versioned[pando.VolumeHome]{},
		Secrets:   map[pando.SecretKey]Versioned[pando.Secret]{},
		Tenants:   map[pando.Tenant]Versioned[access.Account]{},
		Tokens:    map[access.TokenKey]Versioned[access.Token]{},
		Hosts:     map[pando.HostName]Versioned[pando.Host]{},
		Members:   map[pando.HostName]Versioned[pando.Member]{},
		Drained:   map[pando.HostName]bool{},
		Audit:     newAudit(),
		Bills:     map[pando.Key]Versioned[access.Bill]{},
		Marks:     map[pando.HostName]Versioned[pando.WorkMark]{},
		byKey:     map[pando.Key]noted{},
		gone:      map[pando.Key]pando.StoreRevision{},
		intents:   map[pando.ServiceKey][]line[pando.IntentID]{},
		decisions: map[pando.ServiceKey][]line[string]{},
		ofService: rosters[pando.ServiceKey]{},
		onHost:    rosters[pando.HostName]{},
		aliases:   aliases{},
		illegible: newIllegible(),
		ledgers:   newLedgers(),
	}
}

// Apply applies changes. It skips a record that cannot be read, names it in the error and notes it
// (Unread). The other changes count.
func (w *World) Apply(changes []pando.Record, at pando.StoreRevision) error {
	var errs []error
	for _, gone := range []bool{true, false} { // a move deletes a name and puts it under another key
		for _, r := range changes {
			if gone != (r.Value == nil) {
				continue
			}
			if err := w.apply(r); err != nil {
				errs = append(errs, err)
			}
		}
	}
	w.Seen, w.former, w.clock.loaded = max(w.Seen, at), nil, true
	for _, r := range changes {
		if r.Value == nil && w.gone[r.Key] <= r.Modified {
			delete(w.gone, r.Key) // older messages about this key have all arrived
		}
	}
	return errors.Join(errs...)
}

// Committed applies a transaction that this process has just committed, so that its next decision
// need not wait for the watch.
func (w *World) Committed(t pando.Txn, at pando.StoreRevision) {
	for _, k := range t.Delete {
		w.forget(k, at)
	}
	w.clock.loaded = true
	for _, v := range t.Put {
		created := at
		if was, known := w.byKey[v.Key()]; known {
			created = was.created
		}
		w.put(v, created, at)
	}
}

// Knows reports whether the world already has a record or a newer one. It has the process's own
// writes before the watch sends them.
func (w *World) Knows(r pando.Record) bool {
	if r.Value == nil {
		at, ok := w.gone[r.Key]
		return ok && at >= r.Modified
	}
	n, ok := w.byKey[r.Key]
	return ok && n.modified >= r.Modified
}

func (w *World) apply(r pando.Record) error {
	if w.Knows(r) {
		return nil
	}
	if r.Value == nil {
		w.forget(r.Key, r.Modified)
		return nil
	}
	v, err := DecodeAny(r)
	if err != nil {
		w.misread(r, err)
	}
	if err != nil || v == nil {
		return err
	}
	if other, taken := w.namesake(v); taken {
		return fmt.Errorf("record %s: %w: its name is that of %s", r.Key, pando.ErrExists, other)
	}
	w.put(v, r.Created, r.Modified)
	return nil
}

// namesake returns the record under another key with the same name: names of instances, intents and
// decisions are unique.
func (w *World) namesake(v pando.Stored) (other pando.Key, taken bool) {
	switch v := v.(type) {
	case pando.Instance:
		other = w.Instances[v.ID].V.Key()
		_, taken = w.Instances[v.ID]
	case pando.Intent:
		other = w.Intents[v.ID].V.Key()
		_, taken = w.Intents[v.ID]
	case pando.Decision:
		other = w.Decisions[v.ID].V.Key()
		_, taken = w.Decisions[v.ID]
	}
	return other, taken && other != v.Key()
}

// DecodeAny reads a record of any kind. It returns nil for a leader's key, which has no noun.
func DecodeAny(r pando.Record) (pando.Stored, error) {
	switch r.Key.Kind() {
	case pando.KindService:
		return decode[pando.Service](r)
	case pando.KindRevision:
		return decode[pando.Revision](r)
	case pando.KindInstance:
		return decode[pando.Instance](r)
	case pando.KindIntent:
		return decode[pando.Intent](r)
	case pando.KindDecision:
		return decode[pando.Decision](r)
	case pando.KindHead:
		return decode[pando.StateHead](r)
	case pando.KindKeeper:
		return decode[pando.Keeper](r)
	case pando.KindEndpoints:
		return decode[pando.Endpoints](r)
	case pando.KindVolumes:
		return decode[pando.VolumeHome](r)
	case pando.KindRest:
		return decode[pando.Rest](r)
	case pando.KindSecret:
		return decode[pando.Secret](r)
	case pando.KindTenant:
		return decode[access.Account](r)
	case pando.KindToken:
		return decode[access.Token](r)
	case pando.KindAudit:
		return decode[access.Deed](r)
	case pando.KindTrim:
		return decode[access.AuditTrim](r)
	case pando.KindBill:
		return decode[access.Bill](r)
	case pando.KindMark:
		return decode[pando.WorkMark](r)
	case pando.KindHost:
		return decode[pando.Host](r)
	case pando.KindMember:
		return decode[pando.Member](r)
	case pando.KindCluster:
		return decode[pando.Cluster](r)
	}
	return nil, nil
}

// decode trusts the key. A member may write only below its own keys, but the value could name
// another object.
func decode[T pando.Stored](r pando.Record) (pando.Stored, error) {
	var v T
	if err := Decode(r, &v); err != nil {
		return v, err
	}
	if v.Key() != r.Key {
		return v, fmt.Errorf("record %s: %w: its value is that of %s", r.Key, pando.ErrInvalid, v.Key())
	}
	if c, ok := any(v).(interface{ Check() error }); ok {
		if err := c.Check(); err != nil {
			return v, fmt.Errorf("record %s: %w", r.Key, err)
		}
	}
	return v, nil
}

func (w *World) put(v pando.Stored, created, at pando.StoreRevision) {
	was, known := w.byKey[v.Key()]
	if was.modified > at || w.gone[v.Key()] > at {
		return
	}
	if known && was.created != created {
		w.unlistAll(was) // it was deleted and created again
	}
	w.byKey[v.Key()] = noted{v, created, at, w.since(v, was, known)}
	w.readable(v.Key(), at)
	switch v := v.(type) {
	case pando.Service:
		w.noteTimes(v)
		w.settle(w.Services[v.ServiceKey].V, v)
		w.Services[v.ServiceKey] = Versioned[pando.Service]{v, at}
	case pando.Revision:
		if w.Revisions[v.Service] == nil {
			w.Revisions[v.Service] = map[int]Versioned[pando.Revision]{}
		}
		w.Revisions[v.Service][v.Number] = Versioned[pando.Revision]{v, at}
		w.reweigh(v.Service, v.Number)
	case pando.Instance:
		w.enlist(Versioned[pando.Instance]{v, at})
	case pando.Intent:
		w.Intents[v.ID] = Versioned[pando.Intent]{v, at}
		list(w.intents, v.Service, line[pando.IntentID]{created, v.ID})
	case pando.Decision:
		w.Decisions[v.ID] = Versioned[pando.Decision]{v, at}
		list(w.decisions, v.Service, line[string]{created, v.ID})
	case pando.StateHead:
		w.Heads[v.Service] = Versioned[pando.StateHead]{v, at}
	case pando.Keeper:
		w.Keepers[v.Service] = Versioned[pando.Keeper]{v, at}
	case pando.Endpoints:
		w.putEndpoints(v, at)
	case pando.VolumeHome:
		w.Volumes[v.Service] = Versioned[pando.VolumeHome]{v, at}
	case pando.Rest:
		w.rest(Versioned[pando.Rest]{v, at})
	case pando.Secret:
		w.Secrets[v.SecretKey] = Versioned[pando.Secret]{v, at}
	case access.Account:
		w.Tenants[v.Tenant] = Versioned[access.Account]{v, at}
	case access.Token:
		w.Tokens[v.TokenKey] = Versioned[access.Token]{v, at}
	case access.Deed:
		w.Audit.put(v, at)
	case access.AuditTrim:
		w.Audit.Trim = Versioned[access.AuditTrim]{v, at}
	case access.Bill:
		w.Bills[v.Key()] = Versioned[access.Bill]{v, at}
	case pando.WorkMark:
		w.Marks[v.Host] = Versioned[pando.WorkMark]{v, at}
	case pando.Host:
		w.Hosts[v.Name] = Versioned[pando.Host]{v, at}
		w.arrive(v.Name)
	case pando.Member:
		w.Members[v.Name] = Versioned[pando.Member]{v, at}
		w.noteDrain(v)
	case pando.Cluster:
		w.Cluster = Versioned[pando.Cluster]{v, at}
		Agree(v.Layout)
	}
}

func (w *World) forget(k pando.Key, at pando.StoreRevision) {
	n := w.byKey[k]
	if n.modified > at {
		return
	}
	w.readable(k, at)
	delete(w.byKey, k)
	w.gone[k] = max(w.gone[k], at)
	switch v := n.value.(type) {
	case pando.Service:
		w.settle(v, pando.Service{})
		delete(w.clock.of, v.ServiceKey)
		delete(w.Services, v.ServiceKey)
	case pando.Revision:
		delete(w.Revisions[v.Service], v.Number)
		if len(w.Revisions[v.Service]) == 0 {
			delete(w.Revisions, v.Service)
		}
		w.reweigh(v.Service, v.Number)
	case pando.Instance:
		w.delist(v)
	case pando.Intent:
		delete(w.Intents, v.ID)
		w.unlistAll(n)
	case pando.Decision:
		delete(w.Decisions, v.ID)
		w.unlistAll(n)
	case pando.Rest:
		w.unrest(v)
	case pando.StateHead:
		delete(w.Heads, v.Service)
	case pando.Keeper:
		delete(w.Keepers, v.Service)
	case pando.Endpoints:
		w.dropEndpoints(v.Service.ServiceKey, at)
	case pando.VolumeHome:
		delete(w.Volumes, v.Service)
	case pando.Secret:
		delete(w.Secrets, v.SecretKey)
	case access.Account:
		delete(w.Tenants, v.Tenant)
	case access.Token:
		delete(w.Tokens, v.TokenKey)
	case access.Deed:
		w.Audit.drop(v)
	case access.Bill:
		delete(w.Bills, k)
	case pando.WorkMark:
		delete(w.Marks, v.Host)
	case pando.Host:
		delete(w.Hosts, v.Name)
		w.depart(v.Name)
	case pando.Member:
		delete(w.Members, v.Name)
		w.dropDrain(v.Name)
	case pando.Cluster:
		w.Cluster = Versioned[pando.Cluster]{}
	}
}

func byBirth(a, b pando.Instance) int {
	return cmp.Or(a.Born.Compare(b.Born), cmp.Compare(a.ID, b.ID))
}

// IntentsOf returns the intents of a service in the order in which the store got them.
func (w *World) IntentsOf(s pando.ServiceKey) []pando.Intent {
	return listed(w.Intents, w.intents[s])
}

// DecisionsOf returns the decisions about a service in the order in which the store got them.
func (w *World) DecisionsOf(s pando.ServiceKey) []pando.Decision {
	return listed(w.Decisions, w.decisions[s])
}

// line is the place of a record among those of its service: by the commit that created it, and then
// by its name. The writers' clocks take no part, except among the records of one commit.
type line[N cmp.Ordered] struct {
	created pando.StoreRevision
	name    N
}

func (a line[N]) compare(b line[N]) int {
	return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.name, b.name))
}

// list inserts a record in order among those of its service. It is nearly always the end.
func list[N cmp.Ordered](all map[pando.ServiceKey][]line[N], s pando.ServiceKey, n line[N]) {
	if at, there := slices.BinarySearchFunc(all[s], n, line[N].compare); !there {
		all[s] = slices.Insert(all[s], at, n)
	}
}

func unlist[N cmp.Ordered](all map[pando.ServiceKey][]line[N], s pando.ServiceKey, n line[N]) {
	if at, there := slices.BinarySearchFunc(all[s], n, line[N].compare); there {
		all[s] = slices.Delete(all[s], at, at+1)
	}
	if len(all[s]) == 0 {
		delete(all, s)
	}
}

// unlistAll takes a record out of the list of its service.
func (w *World) unlistAll(n noted) {
	switch v := n.value.(type) {
	case pando.Intent:
		unlist(w.intents, v.Service, line[pando.IntentID]{n.created, v.ID})
	case pando.Decision:
		unlist(w.decisions, v.Service, line[string]{n.created, v.ID})
	}
}

// spare is the room that lists have for the new records of a decision. Without it, the first record
// would copy hundreds of old ones.
const spare = 16

func listed[N cmp.Ordered, T pando.Stored](all map[N]Versioned[T], names []line[N]) []T {
	if len(names) == 0 {
		return nil
	}
	out := make([]T, len(names), len(names)+spare)
	for n, at := range names {
		out[n] = all[at.name].V
	}
	return out
}

// SpecOf returns the spec of one revision of a service.
func (w *World) SpecOf(s pando.ServiceKey, revision int) (pando.Spec, bool) {
	r, ok := w.Revisions[s][revision]
	return r.V.Spec, ok
}

// Names returns the services in order, for decisions that must not depend on map order.
func (w *World) Names() []pando.ServiceKey {
	return slices.SortedFunc(maps.Keys(w.Services), pando.ServiceKey.Compare)
}
