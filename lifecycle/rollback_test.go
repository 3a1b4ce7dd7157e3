package lifecycle

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// past is a history: one revision per letter of specs, with the state of the same place.
func past(specs string, states ...pando.RevisionState) (out []pando.Revision) {
	for n, s := range states {
		out = append(out, pando.Revision{
			Number: n + 1, State: s, Reason: "it exits",
			Spec: pando.Spec{WorkingDir: specs[n : n+1]},
		})
	}
	return out
}

func sameFolder(a, b pando.Spec) bool { return a.WorkingDir == b.WorkingDir }

func TestARollbackGoesWhereItMakesSense(t *testing.T) {
	const (
		retired = pando.RevisionRetired
		failed  = pando.RevisionFailed
		current = pando.RevisionCurrent
		rolling = pando.RevisionRolling
	)
	kept := past("abc", retired, failed, current)
	for _, c := range []struct {
		name                string
		kept                []pando.Revision
		current, target, to int
		want                int
		err                 error
		says                string
	}{
		{"the one before", past("ab", retired, current), 2, 2, 0, 1, nil, ""},
		{"over a failed one", kept, 3, 3, 0, 1, nil, ""},
		{"a rollout is given up", past("ab", current, rolling), 1, 2, 0, 1, nil, ""},
		{"back and forth", past("aba", retired, retired, current), 3, 3, 0, 2, nil, ""},
		{"over equal specs", past("abb", retired, retired, current), 3, 3, 0, 1, nil, ""},
		{"the only one", past("a", current), 1, 1, 0, 0, pando.ErrRefused, "no revision with another"},
		{"none has served", past("a", rolling), 0, 1, 0, 0, pando.ErrRefused, "has served yet"},
		{"all before have failed", past("ab", failed, current), 2, 2, 0, 0, pando.ErrRefused,
			"`pando history web`"},
		{"by number", kept, 3, 3, 1, 1, nil, ""},
		{"to itself", kept, 3, 3, 3, 0, pando.ErrRefused, "has revision 3 already"},
		{"to a failed one", kept, 3, 3, 2, 0, pando.ErrRefused, "revision 2 failed: it exits"},
		{"to none", kept, 3, 3, 9, 0, pando.ErrNotFound, "`pando history web`"},
		{"below none", kept, 3, 3, -1, 0, pando.ErrNotFound, "revision -1"},
		{"to an equal one", past("aa", retired, current), 2, 2, 1, 0, pando.ErrRefused,
			"has the spec of revision 2"},
		{"to the serving one of a rollout", past("ab", current, rolling), 1, 2, 1, 1, nil, ""},
	} {
		s := pando.Service{ServiceKey: pando.DefaultService("web"), Current: c.current, Target: c.target}
		got, err := RollbackTo(s, c.kept, c.to, sameFolder)
		if !errors.Is(err, c.err) || err == nil && got.Number != c.want {
			t.Errorf("%s: revision %d, %v; want %d, %v", c.name, got.Number, err, c.want, c.err)
		}
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v does not contain %q", c.name, err, c.says)
		}
	}
}

// In any history, a rollback ends at a stored revision that served or serves, and never at
// the spec that the service has.
func TestARollbackNeverRepeatsTheTarget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var kept []pando.Revision
		first := rapid.IntRange(1, 5).Draw(t, "first")
		for n := range rapid.IntRange(1, 8).Draw(t, "revisions") {
			kept = append(kept, pando.Revision{Number: first + n,
				State: rapid.SampledFrom([]pando.RevisionState{pando.RevisionRetired,
					pando.RevisionFailed}).Draw(t, "state"),
				Spec: pando.Spec{WorkingDir: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "spec")}})
		}
		s := pando.Service{Current: first + len(kept) - 1, Target: first + len(kept) - 1}
		kept[len(kept)-1].State = pando.RevisionCurrent
		to := rapid.IntRange(0, 14).Draw(t, "to")
		r, err := RollbackTo(s, kept, to, sameFolder)
		if err != nil {
			if !errors.Is(err, pando.ErrRefused) && !errors.Is(err, pando.ErrNotFound) {
				t.Fatalf("%v has no sentinel", err)
			}
			return
		}
		if to != 0 && r.Number != to || r.State == pando.RevisionFailed ||
			sameFolder(r.Spec, kept[len(kept)-1].Spec) {
			t.Fatalf("revision %+v of %+v", r, kept)
		}
	})
}
