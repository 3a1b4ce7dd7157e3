package state

import (
	"encoding/json"
	"errors"
	"fmt"

	"pando.run/pando"
)

// UncommittedBytesMax limits the uncommitted writes of one branch. They take the agent's memory and
// the journal on the host's /run.
const UncommittedBytesMax = 64 << 20

// changeBytes is the memory of a change without its path and its values.
const changeBytes = 256

// bytes returns the memory of a change to a path. A member of a set also costs a map entry.
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

// rewriteBytes is the least growth before the pending changes replace a journal.
const rewriteBytes = 1 << 20

// written is one record of a journal: a write to one path, or a commit that was about to take all
// earlier writes.
type written struct {
	Put    string         `json:"put,omitempty"`
	Delete string         `json:"delete,omitempty"`
	Patch  string         `json:"patch,omitempty"`
	Value  []byte         `json:"value,omitempty"`
	Commit pando.ObjectID `json:"commit,omitzero"`
}

// With returns a repo that keeps the uncommitted writes of its new branches in journals.
func (r *Repo) With(j pando.Journals) *Repo {
	q := *r
	q.journals = j
	return &q
}

// journalled makes one write to a path, all or nothing. The caller holds the lock.
func (b *Branch) journalled(p string, w written, apply func() error) error {
	before := b.pending[p].clone()
	err := apply()
	held := b.held + b.pending[p].bytes(p) - before.bytes(p)
	if err == nil && held > UncommittedBytesMax && held > b.held {
		err = fmt.Errorf("state path %q: %w: %d bytes would be written and not committed, at most %d: "+
			"commit first (POST /v1/self/state/commit)",
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
		return fmt.Errorf("keep the writes of %s: %w", b.instance, err)
	}
	b.noted += len(record)
	return nil
}

// rewrite replaces the journal with the pending changes: none, after a commit. If that fails, it
// returns false, and the longer journal with the same content stays.
func (b *Branch) rewrite() bool {
	if b.journal == nil || b.noted == 0 {
		return true
	}
	var records [][]byte
	kept := 0
	for p, c := range b.pending {
		for _, w := range c.writes(p) {
			record, err := json.Marshal(w)
			if err != nil {
				return false
			}
			records = append(records, record)
			kept += len(record)
		}
	}
	if b.journal.Rewrite(records) != nil {
		return false
	}
	b.noted, b.kept, b.lost = kept, kept, nil
	if !b.mark.IsZero() {
		b.mark = pando.ObjectID{}
		b.oweRef(b.repo.ref(markRef, string(b.instance)), b.mark)
	}
	return true
}

// writes returns the writes that make a change.
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

// recall reads the instance's writes from a former agent's journal. If it cannot be read, the next
// commit reports it.
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
		if err == nil { // it was made and has the writes before it
			b.pending, b.mark = map[string]*change{}, w.Commit
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

// complete returns an error, once, if an earlier write of the instance is gone.
func (b *Branch) complete() error {
	if b.lost == nil {
		return nil
	}
	err := fmt.Errorf("commit the state of %s: %w: its writes since the last commit (%w); nothing "+
		"was committed: write them again, then commit",
		b.instance, pando.ErrLost, b.lost)
	b.noted = max(b.noted, 1)
	b.rewrite()
	return err
}
