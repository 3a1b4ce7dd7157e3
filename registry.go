package pando

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// StoreRevision is the store's own counter. It grows with every commit. It is not a Revision, the
// version of a spec.
type StoreRevision int64

// Key names a record: "/pando/<kind>/<tenant>/…". Only the constructors below make keys.
type Key string

// Root is the prefix of every key.
const Root Key = "/pando/"

// Kind is the kind of a record: the second part of its key.
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

// Kind returns the kind of the record that k names, or "" for a foreign key.
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

// Stored is a value with a key: Service, Revision, Instance, Intent, Decision, StateHead, Host or
// Member.
type Stored interface{ Key() Key }

// Record is one key with its value. Modified is zero if the record does not exist.
type Record struct {
	Key      Key
	Value    []byte        // made by world.Encode; nil: the commit Modified deleted it
	Created  StoreRevision // the commit that created it
	Modified StoreRevision // the commit that wrote it last
}

// Snapshot holds every record under a prefix at one store revision, in key order.
type Snapshot struct {
	Records  []Record
	Revision StoreRevision
}

// Batch is the changes of one commit under a watched prefix. A closed watch sends a last batch with
// Err.
type Batch struct {
	Changes  []Record
	Revision StoreRevision
	// Err is ErrCompacted (start again with a snapshot) or ErrUnavailable (try again from
	// Revision).
	Err error
}

// Fence entitles a writer: it names a key that the writer created. If the key is gone or was
// created again, the registry refuses the commit with ErrFenced. The zero fence is for operators
// only.
type Fence struct {
	Key     Key
	Created StoreRevision
}

// Condition is a precondition of a transaction: the record's last change is Modified. 0 means that
// it does not exist.
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

// Registry keeps the records of the cluster: specs, intents, instances, heads and hosts.
// driver/etcd implements it on etcd, driver/sim in virtual time. Errors: ErrConflict, ErrFenced,
// ErrStoreFull, ErrUnavailable, ErrCompacted.
type Registry interface {
	// Snapshot reads every record under prefix, linearizably.
	Snapshot(ctx context.Context, prefix Key) (Snapshot, error)
	// Watch streams every change under prefix after a store revision, in order, until ctx ends or
	// it has sent an error.
	Watch(ctx context.Context, prefix Key, after StoreRevision) <-chan Batch
	// Commit returns once the transaction is durable.
	Commit(ctx context.Context, t Txn) (StoreRevision, error)
	// Lead waits until this caller is the one leader of a role, and returns its fence. lost closes
	// when leadership ends. Names of candidates are unique. A leader with the caller's name is the
	// caller's former process, and the caller replaces it at once.
	Lead(ctx context.Context, role, candidate string) (f Fence, lost <-chan struct{}, err error)
	// Join stores the host's record under a lease of length ttl and keeps the lease alive. It
	// fences a former agent of the same host. lost closes when the lease ends or another agent of
	// the same host joins.
	Join(ctx context.Context, h Host, ttl time.Duration) (f Fence, lost <-chan struct{}, err error)
}

// Service returns the service of a key. ok is false for records of hosts, members and leaders.
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
