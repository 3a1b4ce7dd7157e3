// Package stream keeps the newest changes of the store in memory, for listeners from outside. All
// listeners read one log. A listener is only a place in it, so a slow one holds no memory and stops
// nobody.
//
// The package never waits and never reads the store.
package stream

import (
	"cmp"
	"slices"
	"sync"

	"pando.run/pando"
)

// changeBytes is the memory of a change next to its record.
const changeBytes = 256

// Commit is the changes of one commit. All listeners share its values: nobody may change them.
type Commit struct {
	Revision pando.StoreRevision
	Changes  []pando.Change
	Bytes    int // of the records
}

// NewCommit returns the changes of a batch of the store. changes is what listeners may see of it.
func NewCommit(b pando.Batch, changes []pando.Change) Commit {
	c := Commit{Revision: b.Revision, Changes: changes}
	for _, r := range b.Changes {
		c.Bytes += len(r.Key) + len(r.Value) + changeBytes
	}
	return c
}

// Log is the newest commits of the store, bounded in bytes. Make it with NewLog. Its methods may be
// called at the same time.
type Log struct {
	most int

	mu      sync.Mutex
	commits []Commit
	bytes   int
	from    pando.StoreRevision // it has every commit after this one
	open    bool                // Begin was called
	news    chan struct{}       // closed and replaced at every change
}

// NewLog returns a log of at most so many bytes.
func NewLog(bytesMax int) *Log { return &Log{most: bytesMax, news: make(chan struct{})} }

// Begin drops every commit. The log then has every commit after a revision.
func (l *Log) Begin(after pando.StoreRevision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits, l.bytes, l.from, l.open = nil, 0, after, true
	l.wake()
}

// Add adds the next commit. The oldest commits leave while the log is too large.
func (l *Log) Add(c Commit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits = append(l.commits, c)
	l.bytes += c.Bytes
	n := 0
	for ; l.bytes > l.most && n < len(l.commits); n++ {
		l.bytes -= l.commits[n].Bytes
		l.from = l.commits[n].Revision
		l.commits[n] = Commit{} // the array outlives the slice
	}
	l.commits = l.commits[n:]
	l.wake()
}

// wake wakes every listener. The caller holds the lock.
func (l *Log) wake() {
	close(l.news)
	l.news = make(chan struct{})
}

// Place is where a listener is in the log.
type Place int

// The places of a listener.
const (
	Within Place = iota // the log has every commit after the listener's revision
	Behind              // the log has lost some of them
	Early               // the log has not begun
)

// Covers reports whether the log has every commit after a revision.
func (l *Log) Covers(after pando.StoreRevision) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.place(after) == Within
}

// place returns the place of a listener. The caller holds the lock.
func (l *Log) place(after pando.StoreRevision) Place {
	switch {
	case !l.open:
		return Early
	case after < l.from:
		return Behind
	}
	return Within
}

// Next returns the first commit after a revision, for a listener within the log. Without one, c is
// nil and the channel closes at the next change of the log.
func (l *Log) Next(after pando.StoreRevision) (c *Commit, news <-chan struct{}, at Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at = l.place(after); at != Within {
		return nil, l.news, at
	}
	n, _ := slices.BinarySearchFunc(l.commits, after+1,
		func(c Commit, at pando.StoreRevision) int { return cmp.Compare(c.Revision, at) })
	if n == len(l.commits) {
		return nil, l.news, at
	}
	next := l.commits[n]
	return &next, l.news, at
}
