package state

import (
	"encoding/json"
	"errors"
	"fmt"

	"pando.run/pando"
)

// UncommittedBytesMax is how much of one branch may be written and not committed: it is in the agent's memory, and in the
// journal on the host's /run.
const UncommittedBytesMax = 64 << 20

// changeBytes is what a change takes beside its path and its values.
const changeBytes = 256

// bytes is what a change to a path takes in memory; a member of a set takes as much more as an entry of a map.
func (c *change) bytes(p string) int {
	if c == nil {
		return 0
	}
	n := changeBytes + len(p) + len(c.value) + len(c.add)
	for _, members := range []map[string]bool{c.plus, c.minus} {
		for m := range members {
			n += len(m) + 64
		}
	}
	return n
}

// rewriteBytes is the least by which a journal grows before it is replaced by what is still pending.
const rewriteBytes = 1 << 20

// written is one record of a journal: a write to one path, or a commit that was about to take all writes before it.
type written struct {
	Put    string         `json:"put,omitempty"`
	Delete string         `json:"delete,omitempty"`
	Patch  string         `json:"patch,omitempty"`
	Value  []byte         `json:"value,omitempty"`
	Commit pando.ObjectID `json:"commit,omitzero"`
}

// With makes the branches that are born from here on keep what is written and not committed in journals.
func (r *Repo) With(j pando.Journals) *Repo {
	q := *r
	q.journals = j
	return &q
}

// journalled makes one write to a path, all of it or, with an error, nothing. The caller holds the lock.
func (b *Branch) journalled(p string, w written, apply func() error) error {
	before := b.pending[p].clone()
	err := apply()
	held := b.held + b.pending[p].bytes(p) - before.bytes(p)
	if err == nil && held > UncommittedBytesMax && held > b.held {
		err = fmt.Errorf("state path %q: %w: %d bytes would be written and not committed, at most %d: commit first (POST /v1/self/state/commit)",
			p, pando.ErrTooLarge, held, UncommittedBytesMax)
	}
	if err == nil {
		err = b.note(w)
	}
	if err == nil {
		if b.held = held; b.noted > rewriteBytes+b.kept/4+b.kept {
			b.rewrite()
		}
		return nil
	}
	if b.pending[p] = before; before == nil {
		delete(b.pending, p)
	}
	return err
}

// note adds a record to the journal.
func (b *Branch) note(w written) error {
	if b.journal == nil {
		return nil
	}
	record, err := json.Marshal(w)
	if err == nil {
		err = b.journal.Append(record)
	}
	if err != nil {
		return fmt.Errorf("keep what %s writes: %w", b.instance, err)
	}
	b.noted += len(record)
	return nil
}

// rewrite replaces the journal by what is pending: nothing, after a commit. Where that fails the longer one, which says the
// same, stays.
func (b *Branch) rewrite() {
	if b.journal == nil || b.noted == 0 {
		return
	}
	var records [][]byte
	kept := 0
	for p, c := range b.pending {
		for _, w := range c.writes(p) {
			record, err := json.Marshal(w)
			if err != nil {
				return
			}
			records = append(records, record)
			kept += len(record)
		}
	}
	if b.journal.Rewrite(records) == nil {
		b.noted, b.kept, b.lost = kept, kept, nil
	}
}

// writes are the writes that make a change.
func (c *change) writes(p string) (out []written) {
	switch {
	case c.gone:
		out = append(out, written{Delete: p})
	case c.set:
		out = append(out, written{Put: p, Value: c.value})
	}
	delta := c.add
	for m := range c.plus {
		delta = append(delta, "+"+m+"\n"...)
	}
	for m := range c.minus {
		delta = append(delta, "-"+m+"\n"...)
	}
	if len(delta) > 0 {
		out = append(out, written{Patch: p, Value: delta})
	}
	return out
}

// recall takes up what a former agent's journal has of the instance. Where that cannot be read, the next commit says so.
func (b *Branch) recall() error {
	if b.repo.journals == nil {
		return nil
	}
	var err error
	if b.journal, err = b.repo.journals.Journal(b.instance); err != nil {
		return fmt.Errorf("open the journal of %s: %w", b.instance, err)
	}
	records, err := b.journal.Records()
	for n := 0; err == nil && n < len(records); n++ {
		b.noted += len(records[n])
		err = b.redo(records[n])
	}
	if err != nil {
		b.lost, b.pending = err, map[string]*change{}
	}
	for p, c := range b.pending {
		b.held += c.bytes(p)
	}
	return nil
}

func (b *Branch) redo(record []byte) error {
	var w written
	if err := json.Unmarshal(record, &w); err != nil {
		return err
	}
	switch {
	case !w.Commit.IsZero():
		_, _, err := b.repo.objects.Object(w.Commit)
		if err == nil { // it was made: the writes before it are in it
			b.pending = map[string]*change{}
		} else if !errors.Is(err, pando.ErrNotFound) {
			return err
		}
		return nil
	case w.Put != "":
		return b.put(w.Put, w.Value)
	case w.Delete != "":
		return b.remove(w.Delete)
	}
	return b.patch(w.Patch, w.Value)
}

// complete refuses, once, if something that the instance wrote is not known any more.
func (b *Branch) complete() error {
	if b.lost == nil {
		return nil
	}
	err := fmt.Errorf("commit the state of %s: %w: what it wrote since its last commit (%w); nothing was committed: write it again, then commit",
		b.instance, pando.ErrLost, b.lost)
	b.noted = max(b.noted, 1)
	b.rewrite()
	return err
}
