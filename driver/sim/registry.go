// Package sim is the outside world in memory, for runs in virtual time: registry, sandboxes,
// steering, objects, peers and names. They behave like the real drivers, with faults that a test
// turns on.
//
// A simulation runs inside a bubble of testing/synctest, where time is virtual for every package:
// Clock reads it, and it passes when every goroutine waits. Random numbers come from a seed and are
// drawn for each caller, independent of other callers.
//
// It never touches a file, a socket or the kernel.
package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

var _ pando.Registry = (*Registry)(nil)

// Registry keeps records in memory, with the revisions, conditions and fences of the real one.
type Registry struct {
	*store
	by string // the caller
}

type store struct {
	mu       sync.Mutex
	seed     uint64
	drawn    map[string]uint64 // draws so far about each call
	delayMax time.Duration
	even     bool
	fault    error
	lose     float64 // share of the commits with a lost answer
	id       pando.StoreID
	revision pando.StoreRevision
	records  map[pando.Key]pando.Record
	keys     keys          // of the records
	history  []pando.Batch // every commit since the last compaction
	forgot   int           // commits that compactions forgot
	watching
}

// NewRegistry returns an empty registry. Its calls and watches take up to delayMax each, drawn from
// the seed.
func NewRegistry(seed uint64, delayMax time.Duration) *Registry {
	return &Registry{store: &store{
		seed:     seed,
		drawn:    map[string]uint64{},
		delayMax: delayMax,
		id:       1,
		records:  map[pando.Key]pando.Record{},
		watching: watching{under: map[pando.Key][]*watcher{}},
	}}
}

// As returns the same registry for the calls of one process. Its draws are independent of those of
// other processes.
func (r *Registry) As(process string) *Registry { return &Registry{r.store, process} }

// Fail makes every call fail with err (pando.ErrUnavailable, pando.ErrStoreFull) until Fail(nil). A
// full store can be read.
func (r *Registry) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = err
	r.wakeAll()
}

// Even makes each call take the same time, up to the end of a tick of delayMax. A watch brings all
// commits of a tick together. Processes then work at the same instants, on all processors, and the
// scheduler picks their order. A tick of a large cluster has many commits, as in a real store.
func (r *Registry) Even() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.even = true
}

// Lose makes a share of the commits happen without an answer. The writer receives
// pando.ErrUnavailable, as for a commit that did not happen.
func (r *Registry) Lose(share float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose = share
}

// History returns every commit since the last compaction, in order.
func (r *Registry) History() []pando.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.history)
}

// After returns the commits after a revision, in order, as far as no compaction forgot them.
func (r *Registry) After(at pando.StoreRevision) []pando.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, _ := slices.BinarySearchFunc(r.history, at+1, byRevision)
	return slices.Clone(r.history[n:])
}

// Compact forgets the commits up to a revision. A watch that begins before it ends with
// ErrCompacted.
func (r *Registry) Compact(to pando.StoreRevision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := int(to) - r.forgot; n > 0 {
		r.history = slices.Clone(r.history[min(n, len(r.history)):])
		r.forgot = int(r.revision) - len(r.history)
	}
}

// Size returns the number of the records and the bytes of their values.
func (r *Registry) Size() (records, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.records {
		bytes += len(one.Value)
	}
	return len(r.records), bytes
}

// Depose ends the leadership of a role, or the epoch of a host, as a lost lease does. Its fence
// fails from now on.
func (r *Registry) Depose(f pando.Fence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds(f) {
		r.write(nil, []pando.Key{f.Key})
	}
}

// Overwrite writes a record as it is, as a newer or a broken build would.
func (r *Registry) Overwrite(k pando.Key, value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(map[pando.Key][]byte{k: value}, nil)
}

// draw returns a number in [0, 1): the nth draw about a call, independent of other draws. The
// caller holds the lock.
func (r *Registry) draw(about string) float64 {
	about = r.by + " " + about
	n := r.drawn[about]
	r.drawn[about]++
	return diceOf(r.seed, about, n).Float64()
}

// diceOf returns the dice for the nth draw about a subject, independent of other draws.
func diceOf(seed uint64, about string, n uint64) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(about))
	return rand.New(rand.NewPCG(seed^h.Sum64(), n))
}

// travel waits for the travel time of a call or a message.
func (r *Registry) travel(ctx context.Context, about string) error {
	d := r.delay(about)
	if d == 0 {
		return ctx.Err()
	}
	return pando.Sleep(ctx, Clock{}, d)
}

func (r *Registry) delay(about string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.delayMax == 0:
		return 0
	case r.even:
		return r.delayMax - time.Duration(Clock{}.Now().UnixNano())%r.delayMax
	}
	return time.Duration(r.draw(about) * float64(r.delayMax))
}

// Snapshot reads every record under prefix.
func (r *Registry) Snapshot(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	if err := r.travel(ctx, "read "+string(prefix)); err != nil {
		return pando.Snapshot{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil && r.fault != pando.ErrStoreFull {
		return pando.Snapshot{}, fmt.Errorf("read %s*: %w", prefix, r.fault)
	}
	s := pando.Snapshot{Revision: r.revision, Store: r.id}
	if one, whole := r.records[prefix]; whole { // no key is a prefix of another one
		s.Records = []pando.Record{one}
		return s, nil
	}
	for k := range r.keys.under(prefix) {
		s.Records = append(s.Records, r.records[k])
	}
	return s, nil
}

// operationsMax is the real store's limit for one transaction.
const operationsMax = 1024

// Commit writes a transaction. A fault refuses it before any write.
func (r *Registry) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	about := "commit " + subject(t)
	if err := r.travel(ctx, about); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil {
		return 0, fmt.Errorf("commit: %w", r.fault)
	}
	if n := max(len(t.If)+1, len(t.Put)+len(t.Delete)); n > operationsMax {
		return 0, fmt.Errorf("commit: %w: %d operations, at most %d", pando.ErrTooLarge, n, operationsMax)
	}
	puts := make(map[pando.Key][]byte, len(t.Put))
	for _, v := range t.Put {
		b, err := world.Encode(v)
		if err != nil {
			return 0, err
		}
		puts[v.Key()] = b
	}
	if len(puts) != len(t.Put) || len(puts)+len(t.Delete) == 0 {
		return 0, fmt.Errorf("%w: a transaction writes each key once, and at least one", pando.ErrInvalid)
	}
	if t.Fence != (pando.Fence{}) && !r.holds(t.Fence) {
		return 0, fmt.Errorf("commit: %w: %s of revision %d",
			pando.ErrFenced, t.Fence.Key, t.Fence.Created)
	}
	for _, c := range t.If {
		if now := r.records[c.Key].Modified; now != c.Modified {
			return 0, fmt.Errorf("commit: %w: %s is at revision %d, not %d",
				pando.ErrConflict, c.Key, now, c.Modified)
		}
	}
	at := r.write(puts, t.Delete)
	if r.lose > 0 && r.draw("lose "+about) < r.lose {
		return 0, fmt.Errorf("commit: %w: the answer was lost", pando.ErrUnavailable)
	}
	return at, nil
}

// subject returns the subject of a transaction: its first key.
func subject(t pando.Txn) string {
	for _, v := range t.Put {
		return string(v.Key())
	}
	for _, k := range t.Delete {
		return string(k)
	}
	return ""
}

func (r *Registry) holds(f pando.Fence) bool { return r.records[f.Key].Created == f.Created }

// write makes one commit. Like etcd, it makes none if there is no change. The caller holds the
// lock.
func (r *Registry) write(puts map[pando.Key][]byte, deletes []pando.Key) pando.StoreRevision {
	there := func(k pando.Key) bool { _, ok := r.records[k]; return ok }
	if len(puts) == 0 && !slices.ContainsFunc(deletes, there) {
		return r.revision
	}
	r.revision++
	b := pando.Batch{Revision: r.revision}
	for _, k := range slices.Sorted(maps.Keys(puts)) {
		rec := pando.Record{Key: k, Value: puts[k], Created: r.records[k].Created, Modified: r.revision}
		if rec.Created == 0 {
			rec.Created = r.revision
			r.keys.add(k)
		}
		r.records[k] = rec
		b.Changes = append(b.Changes, rec)
	}
	for _, k := range deletes {
		if _, ok := r.records[k]; ok {
			delete(r.records, k)
			r.keys.drop(k)
			b.Changes = append(b.Changes, pando.Record{Key: k, Modified: r.revision})
		}
	}
	r.history = append(r.history, b)
	r.publish(b)
	return r.revision
}

// Lead waits until the role is free. The leadership lasts until ctx ends or Depose.
func (r *Registry) Lead(
	ctx context.Context, role, candidate string,
) (pando.Fence, <-chan struct{}, error) {
	k := pando.LeaderKey(role)
	value, err := world.Encode(candidate)
	if err != nil {
		return pando.Fence{}, nil, err
	}
	r.mu.Lock()
	w := r.subscribe(k, r.revision)
	r.mu.Unlock()
	defer r.leave(w)
	for {
		r.mu.Lock()
		_, taken := r.records[k]
		if fault := r.fault; fault != nil {
			r.mu.Unlock()
			return pando.Fence{}, nil, fmt.Errorf("lead %s: %w", role, fault)
		}
		if !taken {
			f := pando.Fence{Key: k, Created: r.write(map[pando.Key][]byte{k: value}, nil)}
			lost := r.hold(ctx, f, 0)
			r.mu.Unlock()
			return f, lost, nil
		}
		r.mu.Unlock()
		select {
		case <-w.wake:
		case <-ctx.Done():
			return pando.Fence{}, nil, ctx.Err()
		}
	}
}

// Join writes the host's record and begins a new epoch of its agent. The record goes ttl after the
// end of ctx, unless another agent of the host has joined.
func (r *Registry) Join(
	ctx context.Context, h pando.Host, ttl time.Duration,
) (pando.Fence, <-chan struct{}, error) {
	if err := r.travel(ctx, "join "+string(h.Name)); err != nil {
		return pando.Fence{}, nil, err
	}
	value, err := world.Encode(h)
	if err != nil {
		return pando.Fence{}, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil {
		return pando.Fence{}, nil, fmt.Errorf("join host %s: %w", h.Name, r.fault)
	}
	epoch := pando.LeaderKey("host-" + string(h.Name))
	r.write(nil, []pando.Key{epoch})
	f := pando.Fence{Key: epoch}
	f.Created = r.write(map[pando.Key][]byte{epoch: value, h.Key(): value}, nil)
	return f, r.hold(ctx, f, ttl, h.Key()), nil
}

// hold returns a channel that closes when the fence is lost. After the end of ctx it waits for the
// lease, then deletes the fence's key and the other keys. The caller holds the lock.
func (r *Registry) hold(
	ctx context.Context, f pando.Fence, lease time.Duration, also ...pando.Key,
) <-chan struct{} {
	lost := make(chan struct{})
	w := r.subscribe(f.Key, r.revision)
	go func() {
		defer r.leave(w)
		for {
			r.mu.Lock()
			held := r.holds(f)
			r.mu.Unlock()
			if !held {
				close(lost)
				return
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
				close(lost)
				time.Sleep(lease)
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.holds(f) {
					r.write(nil, append(also, f.Key))
				}
				return
			}
		}
	}()
	return lost
}
