package pando

import (
	"context"
	"encoding/hex"
	"fmt"
)

// ObjectID is the SHA-1 name of an object in git's object model.
type ObjectID [20]byte

func (o ObjectID) String() string { return hex.EncodeToString(o[:]) }
func (o ObjectID) IsZero() bool   { return o == ObjectID{} }

func (o ObjectID) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

func (o *ObjectID) UnmarshalText(b []byte) error {
	n, err := hex.Decode(o[:], b)
	if err != nil || n != len(o) {
		return fmt.Errorf("%w: object id %q", ErrInvalid, b)
	}
	return nil
}

// ObjectKind is git's.
type ObjectKind string

const (
	BlobObject   ObjectKind = "blob"
	TreeObject   ObjectKind = "tree"
	CommitObject ObjectKind = "commit"
)

// Objects keeps the hash tree of one host's services: immutable objects, and names (refs) that point at commits.
// driver/bolt implements it in one file. A ref is "<tenant>/<service>/<kind>/<name>"; package state says which kinds there are.
type Objects interface {
	Object(id ObjectID) (ObjectKind, []byte, error) // ErrNotFound
	Ref(name string) (ObjectID, error)              // ErrNotFound
	Refs(prefix string) (map[string]ObjectID, error)
	// Update writes a set of objects and moves refs, durably, together or not at all.
	Update(ctx context.Context, u ObjectsUpdate) error
	// Prune deletes objects. It first begins to note what is written, then calls live once, which says what to keep: an
	// object that is written meanwhile stays, whether live knows it or not. It may be killed anywhere and works beside
	// everything else.
	Prune(ctx context.Context, live func() (keep func(ObjectID) bool, err error)) (deleted int, err error)
}

// Journals keeps what the instances of one host have written to their state and not committed, so that it outlives the
// agent. It need not outlive the host: its instances do not. driver/journal implements it with a file each.
type Journals interface {
	// Journal opens the journal of an instance, or makes an empty one.
	Journal(i InstanceID) (Journal, error)
}

// Journal is a list of records of one instance.
type Journal interface {
	// Append adds a record. Once it has returned, the record survives the death of this process.
	Append(record []byte) error
	// Records are all records, oldest first. One that was being appended at a death is left out.
	Records() ([][]byte, error)
	// Rewrite replaces all records at once.
	Rewrite(records [][]byte) error
	// Remove gives the journal up.
	Remove() error
}

// ObjectsUpdate is one durable step.
type ObjectsUpdate struct {
	Objects []Object
	Refs    map[string]ObjectID // zero deletes
	// If says what the refs must be now (zero: absent); ErrConflict otherwise.
	If map[string]ObjectID
}

// Object is one immutable object, its body without git's header.
type Object struct {
	ID   ObjectID
	Kind ObjectKind
	Body []byte

	// The body is that of Base with the splices made, in their order, so that a store may keep the difference. Zero: nothing is
	// known of that.
	Base    ObjectID
	Splices []Splice
}

// Splice is one step from one body to another: Keep bytes stay, then Drop bytes give way to Put bytes of the other body.
// What is behind the last one stays.
type Splice struct {
	Keep, Drop, Put int
}
