package sim

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
)

var _ pando.Objects = (*Objects)(nil)

// Objects is one host's hash tree in memory. It survives its agent, as a file does: pass the same
// one to the next agent.
type Objects struct {
	mu      sync.Mutex
	objects map[pando.ObjectID]pando.Object
	refs    map[string]pando.ObjectID
	written map[pando.ObjectID]bool // since a prune began; nil: no prune is at work
}

// NewObjects returns an empty tree.
func NewObjects() *Objects {
	return &Objects{objects: map[pando.ObjectID]pando.Object{}, refs: map[string]pando.ObjectID{}}
}

// Object returns an object, or ErrNotFound.
func (o *Objects) Object(id pando.ObjectID) (pando.ObjectKind, []byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v, ok := o.objects[id]
	if !ok {
		return "", nil, fmt.Errorf("object %s: %w", id, pando.ErrNotFound)
	}
	return v.Kind, v.Body, nil
}

// Ref returns the commit that a ref points at, or ErrNotFound.
func (o *Objects) Ref(name string) (pando.ObjectID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id, ok := o.refs[name]
	if !ok {
		return id, fmt.Errorf("ref %s: %w", name, pando.ErrNotFound)
	}
	return id, nil
}

// Refs returns the refs under a prefix.
func (o *Objects) Refs(prefix string) (map[string]pando.ObjectID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := maps.Clone(o.refs)
	maps.DeleteFunc(out,
		func(name string, _ pando.ObjectID) bool { return !strings.HasPrefix(name, prefix) })
	return out, nil
}

// Update writes objects and moves refs, together or not at all.
func (o *Objects) Update(_ context.Context, u pando.ObjectsUpdate) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, want := range u.If {
		if now := o.refs[name]; now != want {
			return fmt.Errorf("ref %s: %w: it is at %s, not %s", name, pando.ErrConflict, now, want)
		}
	}
	for _, v := range u.Objects {
		o.objects[v.ID] = v
		if o.written != nil {
			o.written[v.ID] = true
		}
	}
	for name, id := range u.Refs {
		if id.IsZero() {
			delete(o.refs, name)
		} else {
			o.refs[name] = id
		}
	}
	return nil
}

// Prune implements pando.Objects.
func (o *Objects) Prune(
	_ context.Context, live func() (func(pando.ObjectID) bool, error),
) (deleted int, err error) {
	o.mu.Lock()
	o.written = map[pando.ObjectID]bool{}
	o.mu.Unlock()
	keep, err := live()
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { o.written = nil }()
	if err != nil {
		return 0, err
	}
	before := len(o.objects)
	maps.DeleteFunc(o.objects,
		func(id pando.ObjectID, _ pando.Object) bool { return !keep(id) && !o.written[id] })
	return before - len(o.objects), nil
}

var _ pando.IDs = (*IDs)(nil)

// IDs counts, so the same run gives the same names. Each process has its own counter, independent
// of the others.
type IDs struct {
	Process int // below 1000
	mu      sync.Mutex
	n       int
}

func (i *IDs) next() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n++
	return i.n
}

// Instance returns website-000001 and so on.
func (i *IDs) Instance(s pando.ServiceName) pando.InstanceID {
	return pando.InstanceID(fmt.Sprintf("%s-%03d%05d", s, i.Process, i.next()))
}

// Sequential returns an id that sorts by time, then by the order of the calls.
func (i *IDs) Sequential(now time.Time) string {
	return fmt.Sprintf("%013x%03d%012x", now.UnixMilli(), i.Process, i.next())
}
