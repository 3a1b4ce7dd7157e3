package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/supply"
)

// Times of seeds.
const (
	// seedSecondsMax bounds one snapshot, and the wait for another one of this host before it.
	seedSecondsMax = 60 * time.Second
	// seedStartMax bounds the start of an instance that continues a seed. A later one starts cold.
	seedStartMax = 10 * time.Second
)

// seedsFailedMax is the number of seeds of a revision that may fail on this host. Further instances
// then start cold, and no snapshot stops the program.
const seedsFailedMax = 2

// seeds are the snapshots that new instances of this host continue, one for each of the newest
// revisions of a service (pando.SeedsMax). The snapshots are in the store of the host. So a new
// agent finds them.
type seeds struct {
	a    *Agent
	mu   sync.Mutex
	read bool // the store was read
	of   map[pando.ServiceKey]map[version]*seed
}

// version is a revision with the hash of its spec. A number alone means another spec after a
// restore of the store, or in a new service of the same name.
type version struct {
	number int
	spec   string
}

func versionOf(i pando.Instance) version { return version{i.Revision, i.SpecHash} }

func (v version) compare(w version) int {
	return cmp.Or(cmp.Compare(v.number, w.number), cmp.Compare(v.spec, w.spec))
}

// seed is the state of the seed of one revision.
type seed struct {
	digest string // "": none
	taking bool
	failed int
	why    string // there is none
}

func newSeeds(a *Agent) *seeds {
	return &seeds{a: a, of: map[pando.ServiceKey]map[version]*seed{}}
}

// get returns the seed of a revision. It keeps those of the newest revisions alone. The caller
// holds the lock.
func (s *seeds) get(k pando.ServiceKey, revision version) *seed {
	if !s.read {
		s.read = true
		s.load()
	}
	all := s.of[k]
	if all == nil {
		all = map[version]*seed{}
		s.of[k] = all
	}
	if all[revision] == nil {
		all[revision] = &seed{why: "it is the first instance of its revision on this host"}
		revisions := slices.SortedFunc(maps.Keys(all), version.compare)
		for _, old := range revisions[:max(0, len(revisions)-pando.SeedsMax)] {
			if old != revision {
				delete(all, old)
			}
		}
	}
	return all[revision]
}

// load reads the seeds of a former agent. The caller holds the lock.
func (s *seeds) load() {
	if s.a.supplier.Snapshots == nil {
		return
	}
	kept, err := s.a.supplier.Snapshots.Kept(pando.ServiceKey{})
	if err != nil {
		s.a.Log.Warn("the seeds of this host cannot be read; the next instances start cold", "error", err)
		return
	}
	for _, st := range slices.Backward(kept) { // the newest last
		if st.Seed && !st.Copy { // a copy was brought for one instance
			s.get(st.Service, version{st.Revision, st.SpecHash}).digest = st.Digest
		}
	}
}

// begin reports whether an instance of a revision is to be stored as its seed. The caller then ends
// the taking with end.
func (s *seeds) begin(k pando.ServiceKey, revision version) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.get(k, revision)
	if one.digest != "" || one.taking || one.failed >= seedsFailedMax || s.a.supplier.Snapshots == nil {
		return false
	}
	one.taking, one.why = true, "the snapshot of its revision is not complete yet"
	return true
}

// end ends the taking of a seed.
func (s *seeds) end(k pando.ServiceKey, revision version, digest string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.get(k, revision)
	one.taking, one.digest = false, digest
	if err != nil {
		if !errors.Is(err, pando.ErrUnavailable) { // else the server has its keys, and may answer later
			one.failed++
		}
		one.why = err.Error()
	}
}

// find returns the seed of a revision, or the reason why there is none.
func (s *seeds) find(k pando.ServiceKey, revision version) (digest, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.a.supplier.Snapshots == nil {
		return "", "this host keeps no snapshots; `pando doctor` there prints why"
	}
	one := s.get(k, revision)
	return one.digest, one.why
}

// reject drops a seed that no instance could continue, with the reason.
func (s *seeds) reject(k pando.ServiceKey, revision version, digest, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.get(k, revision); one.digest == digest {
		one.digest, one.why = "", why
		one.failed++
	}
}

// forget drops a seed that an operator deletes. The next instance that starts is stored again.
func (s *seeds) forget(k pando.ServiceKey, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.of[k] {
		if one.digest == digest {
			one.digest, one.why = "", "an operator deleted the snapshot of its revision"
		}
	}
}

// used returns the digests of all seeds.
func (s *seeds) used() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.of {
		for _, one := range all {
			if one.digest != "" {
				out = append(out, one.digest)
			}
		}
	}
	return out
}

// seeding is the part of a birth that takes and continues seeds.
type seeding struct {
	seeded string // the seed that the instance continues
	began  string // how its program began; "": as ever
	sowing bool   // its program is being stored
	sown   bool   // it was stored, or need not be
}

// startSandbox starts the sandbox of an instance. With `replicate: {from: snapshot}` it continues
// the seed of its revision. Without a seed, or after one that cannot be continued, the program
// starts.
func (r *runner) startSandbox(ctx context.Context, g supply.Supplied) (pando.Sandbox, error) {
	s := g.Spec
	if !s.Spec.Seeded() || s.From != "" || s.Instance.Run != nil {
		return g.Start(ctx)
	}
	digest, why := r.a.seeds.find(r.service, versionOf(s.Instance))
	if digest != "" {
		box, err := r.startFromSeed(ctx, g, digest)
		if err == nil || ctx.Err() != nil {
			return box, err
		}
		why = fmt.Sprintf("its seed %s cannot be continued: %v", shortDigest(digest), err)
		r.a.Log.Warn("an instance starts cold: its seed cannot be continued", "instance", r.id,
			"snapshot", digest, "error", err)
		if !errors.Is(err, pando.ErrUnavailable) { // else the server has its key
			r.a.seeds.reject(r.service, versionOf(s.Instance), digest, why)
		}
	}
	r.birth.seeding.began = "the program runs, from its start: " + records.OneLine(why, records.EvidenceBytesMax)
	return g.Start(ctx)
}

// startFromSeed starts the sandbox of an instance that continues a seed.
func (r *runner) startFromSeed(
	ctx context.Context, g supply.Supplied, digest string,
) (pando.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, seedStartMax)
	defer cancel()
	g, err := g.Continuing(ctx, digest)
	defer func() { g.Done() }()
	if err != nil {
		return nil, err
	}
	box, err := g.Start(ctx)
	if err != nil {
		return nil, err
	}
	r.birth.seeding.seeded, r.ready, r.proven = digest, true, true // the program was ready when it was stored
	r.inst.From = digest
	r.birth.seeding.began = "it continues the seed " + shortDigest(digest) + " of its revision"
	r.events.send(r.a.Clock.Now(), pando.EventRestored, map[string]string{"snapshot": digest})
	return box, nil
}

// storeSeed stores a ready program as the seed of its revision, before its first connection. It
// returns true until the program runs again.
func (r *runner) storeSeed(i pando.Instance, spec pando.Spec) bool {
	switch {
	case r.birth.seeding.sowing:
		return true
	case r.birth.seeding.sown || !spec.Seeded() || i.From != "":
		return false
	}
	r.birth.seeding.sown = true
	if !r.a.seeds.begin(r.service, versionOf(i)) {
		return false
	}
	r.birth.seeding.sowing = true
	r.a.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, seedSecondsMax)
		defer cancel()
		st, err := r.a.snapshots.take(ctx, r, taking{seed: true, plain: spec.Replicate.Plain,
			resumed: func() { r.post(seedTaken{}) }})
		r.a.seeds.end(r.service, versionOf(i), st.Digest, err)
		r.post(seedTaken{})
		reason := fmt.Sprintf("the seed of revision %d on this host is %s: %d bytes, and it stood still "+
			"for %.0f ms; new instances continue it", i.Revision, shortDigest(st.Digest), st.Bytes,
			st.StoppedSeconds*1000)
		if err != nil {
			reason = fmt.Sprintf("revision %d has no seed on this host, and new instances start cold: %v",
				i.Revision, err)
		}
		r.decide(context.WithoutCancel(ctx), pando.DecidedSnapshot, reason,
			map[string]float64{"bytes": float64(st.Bytes), "stopped_seconds": st.StoppedSeconds})
	})
	return true
}

// rejectSeed rejects the seed of an instance that failed before it was ready.
func (r *runner) rejectSeed(reason string) {
	if r.birth.seeding.seeded == "" || r.inst.Phase != pando.PhaseStarting {
		return
	}
	r.a.seeds.reject(r.service, versionOf(r.inst), r.birth.seeding.seeded, fmt.Sprintf("an instance that continued "+
		"the seed %s failed: %s", shortDigest(r.birth.seeding.seeded), reason))
}

// digestShown is the length of a digest in a reason.
const digestShown = 12

// shortDigest returns the first digits of a digest.
func shortDigest(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(len(digest), digestShown)]
}
