package lifecycle

import (
	"fmt"
	"slices"

	"pando.run/pando"
)

// RollbackTo returns the revision with the spec to which a service goes back. to 0 is the serving
// revision during a rollout, else the newest one that served before it with another spec. same
// compares specs, and kept are the stored revisions, oldest first.
//
// ErrNotFound: there is no such revision. ErrRefused: going back there changes nothing, or the
// revision failed.
func RollbackTo(
	s pando.Service, kept []pando.Revision, to int, same func(a, b pando.Spec) bool,
) (pando.Revision, error) {
	of := func(n int) (pando.Revision, bool) {
		i := slices.IndexFunc(kept, func(r pando.Revision) bool { return r.Number == n })
		if i < 0 {
			return pando.Revision{}, false
		}
		return kept[i], true
	}
	if to == 0 {
		return formerOf(s, kept, of, same)
	}
	r, ok := of(to)
	target, _ := of(s.Target)
	switch {
	case !ok:
		return r, fmt.Errorf("revision %d of %s: %w; `pando history %s` lists the revisions",
			to, s.ServiceKey, pando.ErrNotFound, s.ServiceKey)
	case to == s.Target:
		return r, fmt.Errorf("%w: %s has revision %d already", pando.ErrRefused, s.ServiceKey, to)
	case r.State == pando.RevisionFailed:
		return r, fmt.Errorf("%w: revision %d failed: %s; deploy its spec to try it again",
			pando.ErrRefused, to, r.Reason)
	case same(r.Spec, target.Spec):
		return r, fmt.Errorf("%w: revision %d has the spec of revision %d, the present one",
			pando.ErrRefused, to, s.Target)
	}
	return r, nil
}

// formerOf returns the revision that a rollback without a number means.
func formerOf(s pando.Service, kept []pando.Revision, of func(int) (pando.Revision, bool),
	same func(a, b pando.Spec) bool) (pando.Revision, error) {
	now, ok := of(s.Current)
	if s.Current == 0 || !ok {
		return now, fmt.Errorf("%w: no revision of %s has served yet; deploy another spec",
			pando.ErrRefused, s.ServiceKey)
	}
	if s.Target != s.Current {
		return now, nil
	}
	for _, r := range slices.Backward(kept) {
		served := r.State == pando.RevisionRetired && r.Number < s.Current
		if served && !same(r.Spec, now.Spec) {
			return r, nil
		}
	}
	return now, fmt.Errorf("%w: no revision with another spec served before revision %d of %s; "+
		"`pando history %s` lists the revisions", pando.ErrRefused, s.Current, s.ServiceKey, s.ServiceKey)
}
