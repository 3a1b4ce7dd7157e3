package stream

import (
	"fmt"
	"testing"

	"pando.run/pando"
)

// of returns a commit of a record with a value of so many bytes.
func of(at pando.StoreRevision, bytes int) Commit {
	k := pando.Key(fmt.Sprintf("k%d", at))
	return NewCommit(pando.Batch{Revision: at, Changes: []pando.Record{{Key: k,
		Value: make([]byte, bytes)}}}, []pando.Change{{Revision: at, Key: k}})
}

// read returns the revisions that a listener reads after a revision, and whether the log covers it.
func read(l *Log, after pando.StoreRevision) (all []pando.StoreRevision, covered bool) {
	for {
		c, _, at := l.Next(after)
		if c == nil {
			return all, at == Within
		}
		all, after = append(all, c.Revision), c.Revision
	}
}

func TestAListenerReadsWhatCameAfterItsRevision(t *testing.T) {
	l := NewLog(1 << 20)
	if l.Covers(7) {
		t.Error("a log that has not begun covers a revision")
	}
	if _, _, at := l.Next(7); at != Early {
		t.Errorf("before the log begins, a listener is at place %d", at)
	}
	l.Begin(7)
	for _, at := range []pando.StoreRevision{9, 12} {
		l.Add(of(at, 10))
	}
	for after, want := range map[pando.StoreRevision]string{
		6: "[] false", 7: "[9 12] true", 8: "[9 12] true", 9: "[12] true", 12: "[] true",
		20: "[] true",
	} {
		all, covered := read(l, after)
		if got := fmt.Sprint(all, covered); got != want {
			t.Errorf("after %d: %s, want %s", after, got, want)
		}
	}
	_, news, _ := l.Next(12)
	l.Add(of(13, 10))
	select {
	case <-news:
	default:
		t.Error("a listener that waits is not woken")
	}
}

// The bound counts bytes, and a commit leaves as a whole.
func TestTheLogIsBoundedInBytes(t *testing.T) {
	l := NewLog(100_000)
	l.Begin(0)
	for at := range pando.StoreRevision(1000) {
		l.Add(of(at+1, 10_000))
		if l.bytes > 100_000 {
			t.Fatalf("%d bytes after commit %d", l.bytes, at+1)
		}
	}
	if all, covered := read(l, 0); covered {
		t.Errorf("a listener that fell behind reads %v", all)
	}
	if all, covered := read(l, l.from); !covered || len(all) != 9 {
		t.Errorf("%v are left, %t", all, covered)
	}
	l.Add(of(2000, 200_000)) // larger than the log: nobody reads it from here
	if len(l.commits) != 0 || l.bytes != 0 || l.Covers(1999) || !l.Covers(2000) {
		t.Errorf("%d commits, %d bytes after %d", len(l.commits), l.bytes, l.from)
	}
	l.Begin(5000)
	if l.Covers(4999) || !l.Covers(5000) {
		t.Error("a new beginning keeps the former revision")
	}
}
