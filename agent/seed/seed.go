// Package seed remembers the snapshots that new instances of one host continue.
//
// It never takes a snapshot and starts no instance: the runner of an instance does.
package seed

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"pando.run/pando"
)

// Store are the snapshots that new instances of this host continue, one for each of the newest
// revisions of a service (pando.SeedsMax). The snapshots are in the store of the host. So a new
// agent finds them.
type Store struct {
	kept pando.Snapshots // nil: this host keeps none
	log  *slog.Logger
	mu   sync.Mutex
	read bool // the store was read
	of   map[pando.ServiceKey]map[Version]*seed
}

// Version is a revision with the hash of its spec. A number alone means another spec after a
// restore of the store, or in a new service of the same name.
type Version struct {
	Number int
	Spec   string
}

// VersionOf returns the version by which an instance runs.
func VersionOf(i pando.Instance) Version { return Version{i.Revision, i.SpecHash} }

func (v Version) compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Number, w.Number), cmp.Compare(v.Spec, w.Spec))
}

// seed is the state of the seed of one revision.
type seed struct {
	digest string // "": none
	taking bool
	failed int
	why    string // there is none
}

// New returns the seeds among the snapshots of a host.
func New(kept pando.Snapshots, log *slog.Logger) *Store {
	return &Store{kept: kept, log: log, of: map[pando.ServiceKey]map[Version]*seed{}}
}

// get returns the seed of a revision. It keeps those of the newest revisions alone.
func (s *Store) get(k pando.ServiceKey, revision Version) *seed {
	if !s.read {
		s.read = true
		s.load()
	}
	all := s.of[k]
	if all == nil {
		all = map[Version]*seed{}
		s.of[k] = all
	}
	if all[revision] == nil {
		all[revision] = &seed{why: "it is the first instance of its revision on this host"}
		revisions := slices.SortedFunc(maps.Keys(all), Version.compare)
		for _, old := range revisions[:max(0, len(revisions)-pando.SeedsMax)] {
			if old != revision {
				delete(all, old)
			}
		}
	}
	return all[revision]
}

// load reads the seeds of a former agent.
func (s *Store) load() {
	if s.kept == nil {
		return
	}
	all, err := s.kept.Kept(pando.ServiceKey{})
	if err != nil {
		s.log.Warn("the seeds of this host cannot be read; the next instances start cold", "error", err)
		return
	}
	for _, st := range slices.Backward(all) { // the newest last
		if st.Seed && !st.Copy { // a copy was brought for one instance
			s.get(st.Service, Version{st.Revision, st.SpecHash}).digest = st.Digest
		}
	}
}

// BeginTaking reports whether an instance of a revision is to be stored as its seed. The caller
// then ends the taking with end.
func (s *Store) BeginTaking(k pando.ServiceKey, revision Version) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.get(k, revision)
	if one.digest != "" || one.taking || one.failed >= FailedMax || s.kept == nil {
		return false
	}
	one.taking, one.why = true, "the snapshot of its revision is not complete yet"
	return true
}

// EndTaking ends the taking of a seed.
func (s *Store) EndTaking(k pando.ServiceKey, revision Version, digest string, err error) {
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

// Find returns the seed of a revision, or the reason why there is none.
func (s *Store) Find(k pando.ServiceKey, revision Version) (digest, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		return "", "this host keeps no snapshots; `pando doctor` there prints why"
	}
	one := s.get(k, revision)
	return one.digest, one.why
}

// Reject drops a seed that no instance could continue, with the reason.
func (s *Store) Reject(k pando.ServiceKey, revision Version, digest, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.get(k, revision); one.digest == digest {
		one.digest, one.why = "", why
		one.failed++
	}
}

// Forget drops a seed that an operator deletes. The next instance that starts is stored again.
func (s *Store) Forget(k pando.ServiceKey, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.of[k] {
		if one.digest == digest {
			one.digest, one.why = "", "an operator deleted the snapshot of its revision"
		}
	}
}

// Digests returns the digests of all seeds.
func (s *Store) Digests() (out []string) {
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

// FailedMax is the number of seeds of a revision that may fail on this host. Further instances
// then start cold, and no snapshot stops the program.
const FailedMax = 2

// ShortDigest returns the first digits of a digest.
func ShortDigest(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(len(digest), digestShown)]
}

// digestShown is the length of a digest in a reason.
const digestShown = 12
