package world

import (
	"testing"
	"time"

	"pando.run/pando"
)

// An instance's phase and a time of a service's record begin when they come, by this process's own
// clock, also over a new snapshot. What is older than the view is known as such.
func TestMomentsAreOfOneClock(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := pando.DefaultService("web")
	i := pando.Instance{ID: "web-1", Service: s, Phase: pando.PhasePlaced, Since: now.Add(time.Hour)}
	svc := pando.Service{ServiceKey: s, Asked: now.Add(-time.Hour)}
	record := func(v pando.Stored, at pando.StoreRevision) pando.Record {
		b, err := Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		return pando.Record{Key: v.Key(), Value: b, Created: 1, Modified: at}
	}
	w := New()
	apply := func(at pando.StoreRevision, all ...pando.Stored) {
		t.Helper()
		var changes []pando.Record
		for _, v := range all {
			changes = append(changes, record(v, at))
		}
		w.At(now)
		if err := w.Apply(changes, at); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, want time.Time, wantSeen bool) {
		t.Helper()
		if at, seen := w.SinceOf(i.Key()); !at.Equal(want) || seen != wantSeen {
			t.Errorf("%s: since %s (%v), want %s (%v)", what, at, seen, want, wantSeen)
		}
	}
	start := now
	apply(1, i, svc)
	expect("older than the view", start, false)
	if got := w.Local(s, svc.Asked); !got.Equal(svc.Asked) {
		t.Errorf("an old time became %s", got)
	}
	now = now.Add(time.Minute)
	i.Phase, i.Since = pando.PhaseStarting, now.Add(-time.Hour)
	svc.Asked = now.Add(time.Hour)
	apply(2, i, svc)
	began := now
	expect("a new phase", began, true)
	now = now.Add(time.Minute)
	i.Weight, svc.Reason = 25, "x"
	apply(3, i, svc)
	expect("another weight", began, true)
	if got := w.Local(s, svc.Asked); !got.Equal(began) {
		t.Errorf("the new time came at %s, want %s", got, began)
	}
	now = now.Add(time.Minute)
	w = w.Next() // the same store is read again
	apply(4, i, svc)
	expect("after another snapshot", began, true)
	if got := w.Local(s, svc.Asked); !got.Equal(began) {
		t.Errorf("after another snapshot the time came at %s, want %s", got, began)
	}
	if got := w.Local(s, now.Add(time.Hour)); !got.Equal(now.Add(time.Hour)) {
		t.Errorf("a time that is not stored became %s", got)
	}
}
