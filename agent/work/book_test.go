package work

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// TestNoWorkCountsTwice draws readings, saves, kills and collections. A batch that was lost on its
// way comes again with the same content. The bills never have more than was done, and at the end
// they lack at most the readings after the last save.
func TestNoWorkCountsTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
		born, total := now, uint64(0)
		b := New("j1")
		b.Looked(time.Time{})
		saved, _ := b.Bytes()
		mark, billed, seconds := pando.WorkMark{}, uint64(0), 0.0
		collect := func(arrives bool) bool {
			batch, changed := b.Seal(mark)
			if changed {
				saved, _ = b.Bytes()
			}
			if arrives && len(batch.Lines) > 0 {
				for _, l := range batch.Lines {
					billed += l.BytesIn
					seconds += l.InstanceSeconds
				}
				mark.Journal, mark.Number = batch.Journal, batch.Number
			}
			return batch.More || len(batch.Lines) > 0
		}
		read := func() {
			b.Note("web-1", born, Reading{Tenant: "acme", At: now, In: total})
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 4000).Draw(t, "seconds")) * time.Second)
			total += uint64(rapid.IntRange(0, 100).Draw(t, "bytes"))
			do := []string{"read", "save", "kill", "lost", "collect"}
			switch rapid.SampledFrom(do).Draw(t, "do") {
			case "read":
				read()
			case "save":
				read()
				saved, _ = b.Bytes()
			case "kill":
				var err error
				if b, err = Parse(saved); err != nil {
					t.Fatal(err)
				}
			case "lost":
				collect(false)
			case "collect":
				collect(true)
			}
			if billed > total || seconds > now.Sub(born).Seconds()+0.001 {
				t.Fatalf("%d bytes of %d and %g s of %s are billed", billed, total, seconds, now.Sub(born))
			}
		}
		read()
		for collect(true) {
		}
		if lack := now.Sub(born).Seconds() - seconds; billed != total || lack > 0.001 {
			t.Fatalf("%d bytes of %d are billed, and %g s are missing", billed, total, lack)
		}
	})
}

// A host that no leader asks keeps a bounded number of lines and all work.
func TestTheLinesOfALonelyHostAreBounded(t *testing.T) {
	now := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	b, want := New("j1"), 0.0
	b.Looked(time.Time{})
	for hour := range 100 {
		for n := range 60 {
			at := now.Add(time.Duration(hour) * time.Hour)
			i := pando.InstanceID(fmt.Sprint("i", hour, "-", n))
			b.Note(i, at, Reading{Tenant: pando.Tenant(fmt.Sprint("t", n)), At: at.Add(time.Minute)})
			b.End(i)
			want += 60
		}
	}
	got := 0.0
	for _, l := range b.lines(len(b.open)) {
		got += l.InstanceSeconds
	}
	if len(b.open) > linesMax || got != want || len(b.last) != 0 {
		t.Errorf("%d lines with %g s of %g, %d readings", len(b.open), got, want, len(b.last))
	}
}

// A reading that failed, or an unreadable book, counts nothing twice.
func TestAFailedReadingCountsNothingTwice(t *testing.T) {
	now := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	b := New("j1")
	b.Note("old", now.Add(-time.Hour), Reading{Tenant: "acme", At: now, In: 500})
	b.Looked(time.Time{})
	for _, in := range []uint64{600, 0, 700} {
		now = now.Add(time.Second)
		b.Note("old", now, Reading{Tenant: "acme", At: now, In: in})
	}
	if l := b.lines(9); len(l) != 1 || l[0].BytesIn != 200 || l[0].InstanceSeconds != 3 {
		t.Errorf("%+v, want 200 bytes in 3 s", l)
	}
	b.Looked(now)
	now = now.Add(9 * time.Second) // an instance has arrived from another host
	b.Note("moved", now.Add(-time.Hour), Reading{Tenant: "acme", At: now})
	if l := b.lines(9); len(l) != 1 || l[0].InstanceSeconds != 12 {
		t.Errorf("%+v, want 9 s more", l)
	}
	for _, text := range []string{"", "{}", "[", `{"journal":1}`} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("the book %q was read", text)
		}
	}
}
