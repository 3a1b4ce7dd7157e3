package world

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/access"
)

func deed(n int, source string) access.Deed {
	return access.Deed{ID: fmt.Sprintf("%06d", n), Source: source, Verb: "deploy", Result: "ok"}
}

// The sums of the audit equal those of its deeds, through any history of writes, rewrites and
// deletions, in any order of messages.
func TestTheAuditCountsItsDeeds(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	w := New()
	at := pando.StoreRevision(1)
	for range 5000 {
		at++
		d := deed(dice.IntN(200), fmt.Sprint("host h", dice.IntN(5)))
		if dice.IntN(3) == 0 {
			w.forget(d.Key(), at)
			continue
		}
		d.Result = fmt.Sprintf("%0*d", dice.IntN(50)+1, 0)
		w.put(d, at, at)
	}
	bytes, of := 0, map[string]int{}
	for _, d := range w.Audit.deeds {
		bytes += d.V.Bytes()
		of[d.V.Source]++
	}
	if w.Audit.Bytes() != bytes || w.Audit.Len() != len(w.Audit.deeds) || bytes == 0 {
		t.Errorf("%d bytes, want %d", w.Audit.Bytes(), bytes)
	}
	for name, s := range w.Audit.sources {
		if len(s.ids) != of[name] {
			t.Errorf("%s has %d deeds, want %d", name, len(s.ids), of[name])
		}
	}
}

// A flood of one source pushes out its own oldest deeds, and none of another source.
func TestAFloodPushesOutItsOwnDeeds(t *testing.T) {
	const most = 320
	w := New()
	at, n := pando.StoreRevision(0), 0
	add := func(source string) {
		at++
		n++
		w.put(deed(n, source), at, at)
		for _, d := range w.Audit.Excess(most, 1<<30) {
			at++
			if !strings.HasPrefix(d.Source, "token acme/") {
				t.Fatalf("deed %s of %s goes", d.ID, d.Source)
			}
			w.forget(d.Key(), at)
		}
		if w.Audit.Len() > most {
			t.Fatalf("%d deeds", w.Audit.Len())
		}
	}
	for range 50 {
		add("host host1")
		add("token beta/ci")
	}
	for n := range 5000 { // its tokens have one share together
		add(fmt.Sprintf("token acme/ci%d", n%40))
	}
	left := map[string]int{}
	for _, d := range w.Audit.Deeds(access.DeedQuery{}) {
		left[Payer(d)]++
	}
	if left["host host1"] != 50 || left["token beta"] != 50 || left["token acme"] < most-120 {
		t.Errorf("left are %v", left)
	}
	all := w.Audit.Deeds(access.DeedQuery{Source: "acme"})
	if all[len(all)-1].ID != fmt.Sprintf("%06d", n) {
		t.Errorf("the newest is %s, want %d", all[len(all)-1].ID, n)
	}
}

func TestTheBytesOfTheAuditAreBounded(t *testing.T) {
	w := New()
	for n := range 100 {
		w.put(deed(n, fmt.Sprint("host h", n%7)), pando.StoreRevision(n+1), pando.StoreRevision(n+1))
	}
	if gone := w.Audit.Excess(1000, w.Audit.Bytes()); gone != nil {
		t.Errorf("%d go although all fit", len(gone))
	}
	most := w.Audit.Bytes() / 2
	for at, d := range w.Audit.Excess(1000, most) {
		w.forget(d.Key(), pando.StoreRevision(1000+at))
	}
	if w.Audit.Bytes() > most || w.Audit.Bytes() < most*8/10 {
		t.Errorf("%d bytes are left of at most %d", w.Audit.Bytes(), most)
	}
}

// A query continues after a store revision, and a rewritten deed is new again.
func TestAQueryContinuesAfterARevision(t *testing.T) {
	w := New()
	for n := range 10 {
		w.put(deed(n, "host h"), pando.StoreRevision(n+1), pando.StoreRevision(n+1))
	}
	for after, want := range map[pando.StoreRevision]int{0: 10, 4: 6, 9: 1, 10: 0, 99: 0} {
		if got := w.Audit.Deeds(access.DeedQuery{After: after}); len(got) != want {
			t.Errorf("after %d: %d deeds, want %d", after, len(got), want)
		}
	}
	if got := w.Audit.Deeds(access.DeedQuery{Max: 3}); len(got) != 3 || got[2].ID != "000009" {
		t.Errorf("%+v", got)
	}
	w.put(deed(2, "host h"), 20, 20)
	if got := w.Audit.Deeds(access.DeedQuery{After: 10}); len(got) != 1 || got[0].ID != "000002" {
		t.Errorf("%+v", got)
	}
}
