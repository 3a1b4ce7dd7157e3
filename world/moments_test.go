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

// The time of a drain counts on this process's clock from when its mark came, whatever the clock of
// the server that wrote it, also over a new snapshot and other writes of the member.
func TestADrainEndsByTheClockOfItsReader(t *testing.T) {
	for _, skew := range []time.Duration{-time.Minute, 0, time.Minute} {
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		w := New()
		put := func(m pando.Member, at pando.StoreRevision) {
			w.At(now)
			w.Committed(pando.Txn{Put: []pando.Stored{m}}, at)
		}
		put(pando.Member{Name: "h1"}, 1)
		now = now.Add(time.Hour)
		written := now.Add(skew)
		m := pando.Member{Name: "h1", Drain: &pando.HostDrain{At: written, Until: written.Add(time.Hour)}}
		put(m, 2)
		want := now.Add(time.Hour)
		now = now.Add(time.Minute)
		m.Renewed = now
		put(m, 3)
		if got := w.DrainEnds("h1"); !got.Equal(want) || !w.Drained["h1"] {
			t.Errorf("skew %s: it ends at %s, want %s", skew, got, want)
		}
		b, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		w = w.Next()
		w.At(now)
		if err := w.Apply([]pando.Record{{Key: m.Key(), Value: b, Created: 1, Modified: 3}}, 3); err != nil {
			t.Fatal(err)
		}
		if got := w.DrainEnds("h1"); !got.Equal(want) {
			t.Errorf("skew %s: after a snapshot it ends at %s, want %s", skew, got, want)
		}
		m.Drain = &pando.HostDrain{At: written}
		put(m, 4)
		if got := w.DrainEnds("h1"); !got.IsZero() || !w.Drained["h1"] {
			t.Errorf("a drain without an end ends at %s", got)
		}
		m.Drain = nil
		put(m, 5)
		if w.Drained["h1"] {
			t.Error("the host is drained after its drain")
		}
	}
	// A process that begins later takes the length from the record.
	w, now := New(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := now.Add(-10 * time.Minute)
	b, err := Encode(pando.Member{Name: "h1", Drain: &pando.HostDrain{At: at, Until: at.Add(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	w.At(now)
	if err := w.Apply([]pando.Record{{Key: pando.MemberKey("h1"), Value: b, Modified: 1}}, 1); err != nil {
		t.Fatal(err)
	}
	if got := w.DrainEnds("h1"); !got.Equal(now.Add(50 * time.Minute)) {
		t.Errorf("the drain of a former leader ends at %s", got)
	}
}
