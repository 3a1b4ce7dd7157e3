// Package storeguard ties a host to the store that it has seen. It stands between the agent and the
// registry, and passes nothing on from a store that is empty, older or another cluster's.
//
// While the store is wrong, the host is frozen: it follows and writes nothing, and says so in its
// own record where the store takes it. The freeze ends by itself when the right store answers, or a
// restored one. It never decides what a host does with a store that it accepts.
package storeguard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/access/share"
	"pando.run/pando/agent/turn"
	"pando.run/pando/world"
)

var _ pando.Registry = (*Guard)(nil)

// The intervals of a guard.
const (
	silenceMax = 15 * time.Second // of a watch, until the guard looks at the store itself
	saveEvery  = 10 * time.Second // between two saves of a sighting in one generation
	tellMax    = 2 * time.Second  // for the host's own record
)

// Guard is a registry that passes on one cluster's store only. Its methods may be called from any
// goroutine.
type Guard struct {
	pando.Registry
	memory pando.Sightings // nil: it ends with the process
	clock  pando.Clock
	log    *slog.Logger

	mu     sync.Mutex
	seen   pando.Sighting
	saved  time.Time
	stored pando.Sighting              // in the memory
	store  pando.StoreID               // accepted last, or 0
	issued map[pando.Key]pando.StoreID // the store of the newest snapshot of each prefix
	why    error                       // the host is frozen
	host   pando.Host                  // as joined last
	fence  pando.Fence                 // likewise

	looking turn.Turn // one watch at a time looks at the store for all
	looked  pando.Snapshot
	lookAt  time.Time // the time of looked
}

// New returns a guard without a sighting.
func New(r pando.Registry, m pando.Sightings, c pando.Clock, log *slog.Logger) *Guard {
	return &Guard{
		Registry: r, memory: m, clock: c, log: log, issued: map[pando.Key]pando.StoreID{},
		looking: turn.New(),
	}
}

// Recall loads the sighting of a former agent. running means that instances of it run here.
func (a *Guard) Recall(running bool) {
	if a.memory == nil {
		return
	}
	s, err := a.memory.Load(running)
	if err != nil {
		a.log.Error("this host does not know which store it has seen, and accepts any", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.stored = s, s
}

// Frozen returns why the host is frozen, or nil.
func (a *Guard) Frozen() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why
}

// Generation returns the generation of the store that was accepted last.
func (a *Guard) Generation() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen.Generation
}

// Unadopted reports whether the accepted store was restored since this host brought what runs on it
// into the store.
func (a *Guard) Unadopted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen.Generation > 1 && a.seen.Adopted < a.seen.Generation
}

// Drifts reports whether an instance runs here without a record since a restore.
func (a *Guard) Drifts(i pando.InstanceID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Contains(strings.Fields(a.seen.Adrift), string(i))
}

// Adrift returns the last records of the instances that run here without one since a restore.
func (a *Guard) Adrift() (out []pando.Instance) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lastRecords()
}

// lastRecords decodes the records. The caller holds the lock.
func (a *Guard) lastRecords() (out []pando.Instance) {
	if a.seen.Records == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(a.seen.Records), &out); err != nil {
		a.log.Error("the records of instances without one cannot be read", "error", err)
	}
	return out
}

// Adopted notes that the store has what runs here, but for some instances, and shows that in the
// host's record.
func (a *Guard) Adopted(ctx context.Context, adrift []pando.Instance) error {
	a.mu.Lock()
	err := a.list(adrift)
	if err == nil {
		a.seen.Adopted = a.seen.Generation
		a.save()
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return a.show(ctx)
}

// Ended notes that instances without a record run here no more, and shows that in the host's record.
func (a *Guard) Ended(ctx context.Context, gone []pando.InstanceID) error {
	a.mu.Lock()
	known := a.lastRecords()
	var left []pando.Instance
	for _, word := range strings.Fields(a.seen.Adrift) {
		id := pando.InstanceID(word)
		n := slices.IndexFunc(known, func(i pando.Instance) bool { return i.ID == id })
		switch {
		case slices.Contains(gone, id):
		case n < 0:
			left = append(left, pando.Instance{ID: id})
		default:
			left = append(left, known[n])
		}
	}
	err := a.list(left)
	if err == nil {
		a.save()
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return a.show(ctx)
}

// list notes the instances without a record, to be saved at once. The caller holds the lock.
func (a *Guard) list(adrift []pando.Instance) error {
	var names []string
	for _, i := range adrift {
		names = append(names, string(i.ID))
	}
	var records []byte
	if len(adrift) > 0 {
		var err error
		if records, err = json.Marshal(adrift); err != nil {
			return err
		}
	}
	a.seen.Adrift, a.seen.Records, a.saved = strings.Join(names, " "), string(records), time.Time{}
	return nil
}

// Snapshot implements pando.Registry. It returns ErrFrozen for a store that is not accepted.
func (a *Guard) Snapshot(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	before := a.sighting()
	s, err := a.Registry.Snapshot(ctx, prefix)
	if err != nil {
		return s, err
	}
	if err := a.check(ctx, before, s, prefix); err != nil {
		return pando.Snapshot{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.issued[prefix] = s.Store
	return s, nil
}

// sighting returns what the host has seen. A caller takes it before it asks the store, because an
// answer may arrive after that of a later commit.
func (a *Guard) sighting() pando.Sighting {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

// check compares the store that gave a snapshot with the one that the host had seen before.
func (a *Guard) check(
	ctx context.Context, before pando.Sighting, s pando.Snapshot, prefix pando.Key,
) error {
	a.mu.Lock()
	// A young store has no record of itself yet. Any of the snapshots may be the first with it.
	known := a.why == nil && a.seen.Cluster != "" && s.Store != 0 && s.Store == a.store &&
		s.Revision >= before.Revision
	a.mu.Unlock()
	own := s
	if whole := strings.HasPrefix(string(pando.ClusterKey), string(prefix)); !whole && !known {
		var err error
		if own, err = a.Registry.Snapshot(ctx, pando.ClusterKey); err != nil {
			return err
		}
		if own.Store != s.Store {
			return fmt.Errorf("the store is %w: it was replaced during a read", pando.ErrUnavailable)
		}
	}
	if known {
		a.note(s.Revision)
		return nil
	}
	c, err := clusterOf(own.Records)
	a.mu.Lock()
	if err == nil {
		err = before.Accepts(c, s.Revision)
	}
	changed := a.judge(c, s, err)
	a.mu.Unlock()
	if changed {
		a.tell(ctx)
	}
	return err
}

// clusterOf finds the store's record of itself. It returns nil if there is none.
func clusterOf(records []pando.Record) (*pando.Cluster, error) {
	for _, r := range records {
		if r.Key != pando.ClusterKey || r.Value == nil {
			continue
		}
		v, err := world.DecodeAny(r)
		if err != nil {
			return nil, fmt.Errorf("%w: the store's record of itself: %w", pando.ErrFrozen, err)
		}
		c := v.(pando.Cluster)
		return &c, nil
	}
	return nil, nil
}

// judge takes a verdict down and reports whether the host froze or thawed. The caller holds the
// lock.
func (a *Guard) judge(c *pando.Cluster, s pando.Snapshot, err error) (changed bool) {
	changed = (a.why == nil) != (err == nil)
	if err != nil {
		if a.why == nil || a.why.Error() != err.Error() {
			a.log.Error("this host is frozen: nothing on it is removed, started or steered anew",
				"error", err)
		}
		a.why, a.store = err, 0
		return changed
	}
	if changed {
		a.log.Warn("this host follows the store again")
	}
	a.why, a.store = nil, s.Store
	if c != nil {
		a.see(*c, s.Revision)
	}
	return changed
}

// see takes over a cluster's store at a revision. The caller holds the lock.
func (a *Guard) see(c pando.Cluster, at pando.StoreRevision) {
	next := pando.Sighting{Cluster: c.ID, Generation: c.Generation, Revision: at,
		Adopted: a.seen.Adopted, Adrift: a.seen.Adrift, Records: a.seen.Records}
	if a.seen.Cluster == "" { // a host that has seen no store has nothing to bring
		next.Adopted = c.Generation
	}
	if next.Cluster == a.seen.Cluster && next.Generation == a.seen.Generation {
		next.Revision = max(at, a.seen.Revision)
	} else {
		a.saved = time.Time{}
	}
	a.seen = next
	a.save()
}

// note takes a revision of the accepted store down.
func (a *Guard) note(at pando.StoreRevision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen.Revision = max(a.seen.Revision, at)
	a.save()
}

// save writes the sighting, at most every saveEvery. The caller holds the lock.
func (a *Guard) save() {
	now := a.clock.Now()
	if a.memory == nil || a.seen.Cluster == "" || a.seen == a.stored ||
		now.Sub(a.saved) < saveEvery {
		return
	}
	a.saved, a.stored = now, a.seen
	if err := a.memory.Save(a.seen); err != nil {
		a.log.Warn("this host cannot note which store it has seen", "error", err)
	}
}

// tell writes the freeze, or its end, into the host's own record, as far as the store lets it.
func (a *Guard) tell(ctx context.Context) {
	err := a.show(ctx)
	if err != nil && !errors.Is(err, pando.ErrFenced) { // without its epoch it joins again
		a.log.Warn("the store does not show that this host is frozen or not", "error", err)
	}
}

// show writes the host's own record. Before the first join it does nothing.
func (a *Guard) show(ctx context.Context) error {
	a.mu.Lock()
	h, f := a.decorated(a.host, a.why), a.fence
	a.mu.Unlock()
	if f == (pando.Fence{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tellMax)
	defer cancel()
	_, err := a.Registry.Commit(ctx, pando.Txn{Fence: f, Put: []pando.Stored{h}})
	return err
}

// decorated returns a host's record with its freeze and its adoption. The caller holds the lock.
func (a *Guard) decorated(h pando.Host, why error) pando.Host {
	h.Frozen, h.Adopted = text(why), a.seen.Adopted
	h.Adrift = strings.Join(share.Newest(a.adrift(), pando.AdriftMax, func(word string) pando.Tenant {
		s, _ := pando.ParseAdrift(word)
		return s.Tenant
	}), " ")
	return h
}

// adrift returns the names of the instances without a record. The caller holds the lock.
func (a *Guard) adrift() (names []string) {
	words := strings.Fields(a.seen.Adrift)
	for _, i := range a.lastRecords() {
		if n := slices.Index(words, string(i.ID)); n >= 0 && i.Service.Name != "" {
			words = slices.Delete(words, n, n+1)
			names = append(names, pando.AdriftName(i))
		}
	}
	return append(names, words...) // of a former agent
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), pando.ErrFrozen.Error()+": ")
}

// Commit implements pando.Registry. It writes nothing to a store that is not accepted.
func (a *Guard) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	if why := a.Frozen(); why != nil {
		return 0, why
	}
	before := a.sighting()
	at, err := a.Registry.Commit(ctx, t)
	if err != nil {
		return at, err
	}
	a.mu.Lock()
	older := at < before.Revision && a.seen.Generation == before.Generation
	if older {
		a.store = 0 // the next read checks the store
	}
	a.mu.Unlock()
	if older {
		return 0, fmt.Errorf("%w: the store answered with revision %d, which is older than this host's",
			pando.ErrFrozen, at)
	}
	return at, nil
}

// Join implements pando.Registry. A host joins a store that it does not accept as a frozen one, so
// that operators see it and nothing is placed on it.
func (a *Guard) Join(
	ctx context.Context, h pando.Host, ttl time.Duration,
) (pando.Fence, <-chan struct{}, error) {
	before := a.sighting()
	own, err := a.Registry.Snapshot(ctx, pando.ClusterKey)
	if err != nil {
		return pando.Fence{}, nil, err
	}
	err = a.check(ctx, before, own, pando.ClusterKey)
	if err != nil && !errors.Is(err, pando.ErrFrozen) {
		return pando.Fence{}, nil, err
	}
	a.mu.Lock()
	h = a.decorated(h, err)
	a.mu.Unlock()
	f, lost, err := a.Registry.Join(ctx, h, ttl)
	if err != nil {
		return f, lost, err
	}
	a.mu.Lock()
	a.host, a.fence = h, f
	stale := text(a.why) != h.Frozen
	a.mu.Unlock()
	if stale {
		a.tell(ctx)
	}
	return f, lost, nil
}
