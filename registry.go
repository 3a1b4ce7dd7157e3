package pando

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// StoreRevision is the store's own counter: it grows with every commit. (A Revision, by contrast, is a version of a spec.)
type StoreRevision int64

// Key names a record: "/pando/<kind>/<tenant>/…". The constructors below are the only makers of keys.
type Key string

// Root is the prefix of every key.
const Root Key = "/pando/"

// Kind is the second part of a key: what the record is.
type Kind string

const (
	KindService  Kind = "service"
	KindRevision Kind = "revision"
	KindInstance Kind = "instance"
	KindIntent   Kind = "intent"
	KindDecision Kind = "decision"
	KindHead     Kind = "head"
	KindHost     Kind = "host"
	KindMember   Kind = "member"
	KindLeader   Kind = "leader"
)

func key(kind Kind, parts ...string) Key {
	return Root + Key(kind) + "/" + Key(strings.Join(parts, "/"))
}

// Kind of the record that k names, "" for a foreign key.
func (k Key) Kind() Kind {
	rest, ok := strings.CutPrefix(string(k), string(Root))
	if !ok {
		return ""
	}
	kind, _, _ := strings.Cut(rest, "/")
	return Kind(kind)
}

func (s Service) Key() Key    { return key(KindService, string(s.Tenant), string(s.Name)) }
func (k ServiceKey) Key() Key { return key(KindService, string(k.Tenant), string(k.Name)) }
func (r Revision) Key() Key   { return RevisionKey(r.Service, r.Number) }
func (i Instance) Key() Key {
	return key(KindInstance, string(i.Service.Tenant), string(i.Service.Name), string(i.Host), string(i.ID))
}
func (i Intent) Key() Key {
	return key(KindIntent, string(i.Service.Tenant), string(i.Service.Name), string(i.ID))
}
func (d Decision) Key() Key {
	return key(KindDecision, string(d.Service.Tenant), string(d.Service.Name), d.ID)
}
func (h StateHead) Key() Key { return HeadKey(h.Service) }
func (h Host) Key() Key      { return HostKey(h.Name) }

func RevisionKey(s ServiceKey, n int) Key {
	return key(KindRevision, string(s.Tenant), string(s.Name), fmt.Sprintf("%08d", n))
}
func HeadKey(s ServiceKey) Key  { return key(KindHead, string(s.Tenant), string(s.Name)) }
func HostKey(h HostName) Key    { return key(KindHost, string(h)) }
func LeaderKey(role string) Key { return key(KindLeader, role) }

// Stored is a value that has a key: Service, Revision, Instance, Intent, Decision, StateHead, Host or Member.
type Stored interface{ Key() Key }

// Record is one key with its value. Modified is zero for a record that does not exist.
type Record struct {
	Key      Key
	Value    []byte        // of Encode; nil: deleted, by the commit Modified
	Created  StoreRevision // of the commit that created it
	Modified StoreRevision // of the commit that wrote it last
}

// Snapshot is every record under a prefix at one store revision, in key order.
type Snapshot struct {
	Records  []Record
	Revision StoreRevision
}

// Batch is what one commit changed under a watched prefix. A closed watch sends a last batch with Err.
type Batch struct {
	Changes  []Record
	Revision StoreRevision
	Err      error // ErrCompacted: begin anew with a snapshot; ErrUnavailable: try again from Revision
}

// Fence is what entitles a writer: a key that it created and that must still be the same creation.
// A registry refuses a commit with ErrFenced when it is not. The zero fence entitles operators only.
type Fence struct {
	Key     Key
	Created StoreRevision
}

// Condition is what must hold for a transaction: the record was last modified at Modified (0: it does not exist).
type Condition struct {
	Key      Key
	Modified StoreRevision
}

// Txn is a set of writes that happen together or not at all.
type Txn struct {
	Fence  Fence
	If     []Condition // ErrConflict when one does not hold
	Put    []Stored
	Delete []Key
}

// Registry is who is where: specs, intents, instances, heads and hosts. driver/etcd implements it on etcd, driver/sim in
// virtual time. Errors: ErrConflict, ErrFenced, ErrStoreFull, ErrUnavailable, ErrCompacted.
type Registry interface {
	// Snapshot reads everything under prefix, linearizably.
	Snapshot(ctx context.Context, prefix Key) (Snapshot, error)
	// Watch streams every change under prefix after a store revision, in order, until ctx ends or an error is sent.
	Watch(ctx context.Context, prefix Key, after StoreRevision) <-chan Batch
	// Commit is durable when it returns.
	Commit(ctx context.Context, t Txn) (StoreRevision, error)
	// Lead waits until this caller is the one leader of a role and returns its fence. lost closes when leadership ends. Names
	// of candidates are unique: a leader of the same name is the caller's own former life, and is succeeded at once.
	Lead(ctx context.Context, role, candidate string) (f Fence, lost <-chan struct{}, err error)
	// Join puts the host's record under a lease of this length and keeps it alive; a former agent of the same host is
	// fenced from now on. lost closes when the lease ended or another agent of the same host joined.
	Join(ctx context.Context, h Host, ttl time.Duration) (f Fence, lost <-chan struct{}, err error)
}

// Service returns the service that a key belongs to; ok is false for records of hosts and leaders.
func (k Key) Service() (s ServiceKey, ok bool) {
	parts := strings.SplitN(string(k), "/", 6) // "", pando, kind, tenant, service, …
	switch k.Kind() {
	case KindService, KindRevision, KindInstance, KindIntent, KindDecision, KindHead:
		if len(parts) < 5 {
			return ServiceKey{}, false
		}
		return ServiceKey{Tenant: Tenant(parts[3]), Name: ServiceName(parts[4])}, true
	}
	return ServiceKey{}, false
}
