package pando

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// StoreRevision is the store's own counter. It grows with every commit. It is not a Revision, the
// version of a spec.
type StoreRevision int64

// StoreID names the database that gave an answer. A new, replaced or restored database has another
// one. 0: unknown.
type StoreID uint64

// Key names a record: "/pando/<kind>/<tenant>/…". Only the constructors below make keys.
type Key string

// Root is the prefix of every key.
const Root Key = "/pando/"

// Kind is the kind of a record: the second part of its key.
type Kind string

const (
	KindService   Kind = "service"   // a Service
	KindRevision  Kind = "revision"  // a Revision
	KindInstance  Kind = "instance"  // an Instance
	KindIntent    Kind = "intent"    // an Intent
	KindDecision  Kind = "decision"  // a Decision
	KindHead      Kind = "head"      // a StateHead
	KindKeeper    Kind = "keeper"    // a Keeper
	KindEndpoints Kind = "endpoints" // an Endpoints
	KindVolumes   Kind = "volumes"   // a VolumeHome
	KindRest      Kind = "rest"      // a Rest
	KindSecret    Kind = "secret"    // a Secret
	KindTenant    Kind = "tenant"    // an Account
	KindToken     Kind = "token"     // a Token
	KindAudit     Kind = "audit"     // a Deed
	KindTrim      Kind = "trim"      // an AuditTrim
	KindBill      Kind = "bill"      // a Bill
	KindMark      Kind = "mark"      // a WorkMark
	KindHost      Kind = "host"      // a Host, under its lease
	KindMember    Kind = "member"    // a Member
	KindCluster   Kind = "cluster"   // the Cluster, one record
	KindLeader    Kind = "leader"    // the leader of a role; its value names the candidate
)

// MakeKey returns the key of a record: of its kind, and of its parts below it.
func MakeKey(kind Kind, parts ...string) Key {
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

// Key returns the key of the service's record.
func (k ServiceKey) Key() Key { return MakeKey(KindService, string(k.Tenant), string(k.Name)) }

// Key returns the key of the revision's record.
func (r Revision) Key() Key { return RevisionKey(r.Service, r.Number) }

// Key returns the key of the instance's record. It contains the instance's host, so that an agent
// can watch the instances of its host.
func (i Instance) Key() Key {
	s := i.Service
	return MakeKey(KindInstance, string(s.Tenant), string(s.Name), string(i.Host), string(i.ID))
}

// Key returns the key of the intent's record.
func (i Intent) Key() Key {
	return MakeKey(KindIntent, string(i.Service.Tenant), string(i.Service.Name), string(i.ID))
}

// Key returns the key of the decision's record.
func (d Decision) Key() Key {
	return MakeKey(KindDecision, string(d.Service.Tenant), string(d.Service.Name), d.ID)
}

// Key returns the key of the head's record.
func (h StateHead) Key() Key { return HeadKey(h.Service) }

// Key returns the key of the record.
func (e Endpoints) Key() Key { return EndpointsKey(e.Service.ServiceKey) }

// Key returns the key of the host's record.
func (h Host) Key() Key { return HostKey(h.Name) }

// RevisionKey returns the key of a revision. Keys of a service's revisions sort by number.
func RevisionKey(s ServiceKey, n int) Key {
	return MakeKey(KindRevision, string(s.Tenant), string(s.Name), fmt.Sprintf("%08d", n))
}

// HeadKey returns the key of the main head of a service's state.
func HeadKey(s ServiceKey) Key { return MakeKey(KindHead, string(s.Tenant), string(s.Name)) }

// EndpointsKey returns the key of the endpoints of a service.
func EndpointsKey(s ServiceKey) Key { return MakeKey(KindEndpoints, string(s.Tenant), string(s.Name)) }

// HostKey returns the key of a host's record.
func HostKey(h HostName) Key { return MakeKey(KindHost, string(h)) }

// LeaderKey returns the key under which the leader of a role stands.
func LeaderKey(role string) Key { return MakeKey(KindLeader, role) }

// Stored is a value with a key: Service, Revision, Instance, Intent, Decision, StateHead,
// Keeper, Endpoints, VolumeHome, Rest, Secret, Account, Token, Deed, AuditTrim, Bill,
// WorkMark, Host or Member.
type Stored interface {
	// Key returns the key of the value's record.
	Key() Key
}

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
	Store    StoreID
}

// Batch is the changes of one commit under a watched prefix. A closed watch sends a last batch with
// Err.
type Batch struct {
	Changes  []Record
	Revision StoreRevision
	Store    StoreID
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
// driver/store/etcd implements it on etcd, driver/sim in virtual time. Errors: ErrConflict, ErrFenced,
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
	case KindService, KindRevision, KindInstance, KindIntent, KindDecision, KindHead,
		KindEndpoints, KindKeeper, KindVolumes:
		if len(parts) < 5 {
			return ServiceKey{}, false
		}
		return ServiceKey{Tenant: Tenant(parts[3]), Name: ServiceName(parts[4])}, true
	}
	return ServiceKey{}, false
}

// Host returns the host of the key of a host's record.
func (k Key) Host() (h HostName, ok bool) {
	rest, ok := strings.CutPrefix(string(k), string(HostKey("")))
	return HostName(rest), ok
}

// Under returns the prefix of every key of a kind.
func (k Kind) Under() Key { return Root + Key(k) + "/" }

// InstancesOn returns the prefix of the instances of a service on a host.
func InstancesOn(s ServiceKey, h HostName) Key { return Instance{Service: s, Host: h}.Key() }

// RevisionsOf returns the prefix of the revisions of a service.
func RevisionsOf(s ServiceKey) Key {
	return MakeKey(KindRevision, string(s.Tenant), string(s.Name), "")
}

// ObjectID is the SHA-1 name of an object in git's object model.
type ObjectID [20]byte

// String returns the 40 hexadecimal digits.
func (o ObjectID) String() string { return hex.EncodeToString(o[:]) }

// IsZero reports whether there is no object.
func (o ObjectID) IsZero() bool { return o == ObjectID{} }

// MarshalText returns the 40 hexadecimal digits.
func (o ObjectID) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads 40 hexadecimal digits.
func (o *ObjectID) UnmarshalText(b []byte) error {
	n, err := hex.Decode(o[:], b)
	if err != nil || n != len(o) {
		return fmt.Errorf("%w: object id %q", ErrInvalid, b)
	}
	return nil
}

// ObjectKind is the kind of an object in git.
type ObjectKind string

const (
	BlobObject   ObjectKind = "blob"   // the bytes of one path
	TreeObject   ObjectKind = "tree"   // one folder
	CommitObject ObjectKind = "commit" // a tree with its parents and its author
)

// Objects keeps the hash tree of one host's services: immutable objects, and names (refs) that
// point at commits. driver/store/bolt implements it in one file. A ref is
// "<tenant>/<service>/<kind>/<name>". Package state lists the kinds.
type Objects interface {
	Object(id ObjectID) (ObjectKind, []byte, error) // ErrNotFound
	Ref(name string) (ObjectID, error)              // ErrNotFound
	// Refs returns the refs under a prefix.
	Refs(prefix string) (map[string]ObjectID, error)
	// Update writes a set of objects and moves refs, durably, together or not at all.
	Update(ctx context.Context, u ObjectsUpdate) error
	// Prune deletes dead objects. It first starts to note new writes, then calls live once for the
	// objects to keep. An object that is written meanwhile stays, even if live does not list it.
	// Prune may be killed at any point and runs beside all other calls.
	Prune(
		ctx context.Context, live func() (keep func(ObjectID) bool, err error),
	) (deleted int, err error)
}

// Journals keeps the uncommitted state of one host's instances, so that it outlives the agent. It
// need not outlive the host, because its instances do not. driver/store/journal implements it with a file
// each.
type Journals interface {
	// Journal opens the journal of an instance, or makes an empty one.
	Journal(i InstanceID) (Journal, error)
}

// Journal is a list of records of one instance.
type Journal interface {
	// Append adds a record. Once it returns, the record survives the death of this process.
	Append(record []byte) error
	// Records returns all records, oldest first. It leaves out a record that a crash cut off.
	Records() ([][]byte, error)
	// Rewrite replaces all records at once.
	Rewrite(records [][]byte) error
	// Remove deletes the journal.
	Remove() error
}

// ObjectsUpdate is one durable step.
type ObjectsUpdate struct {
	Objects []Object
	Refs    map[string]ObjectID // zero deletes
	// If lists the expected refs (zero: absent). If one differs, the update fails with ErrConflict.
	If map[string]ObjectID
}

// StateCommit is one line of `pando state log`.
type StateCommit struct {
	Commit    ObjectID   `json:"commit"`
	Parents   []ObjectID `json:"parents"`
	Instance  InstanceID `json:"instance"` // its author
	Message   string     `json:"message"`
	At        int64      `json:"at"` // Unix seconds
	Conflicts []string   `json:"conflicts,omitempty"`
}

// Object is one immutable object, its body without git's header.
type Object struct {
	ID   ObjectID
	Kind ObjectKind
	Body []byte

	// Body is the body of Base after the splices, in order, so that a store may keep the
	// difference. Zero: no base is known.
	Base    ObjectID
	Splices []Splice
}

// Splice is one step from one body to another: Keep bytes stay, then Put bytes of the other body
// replace Drop bytes. The rest after the last splice stays.
type Splice struct {
	Keep, Drop, Put int
}
