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

// ObjectKind is the kind of an object in git.
type ObjectKind string

const (
	BlobObject   ObjectKind = "blob"
	TreeObject   ObjectKind = "tree"
	CommitObject ObjectKind = "commit"
)

// Objects keeps the hash tree of one host's services: immutable objects, and names (refs) that
// point at commits. driver/bolt implements it in one file. A ref is
// "<tenant>/<service>/<kind>/<name>". Package state lists the kinds.
type Objects interface {
	Object(id ObjectID) (ObjectKind, []byte, error) // ErrNotFound
	Ref(name string) (ObjectID, error)              // ErrNotFound
	Refs(prefix string) (map[string]ObjectID, error)
	// Update writes a set of objects and moves refs, durably, together or not at all.
	Update(ctx context.Context, u ObjectsUpdate) error
	// Prune deletes dead objects. It first starts to note new writes, then calls live once for the
	// objects to keep. An object that is written meanwhile stays, even if live does not list it.
	// Prune may be killed at any point and runs beside all other calls.
	Prune(ctx context.Context, live func() (keep func(ObjectID) bool, err error)) (deleted int, err error)
}

// Journals keeps the uncommitted state of one host's instances, so that it outlives the agent. It
// need not outlive the host, because its instances do not. driver/journal implements it with a file
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
