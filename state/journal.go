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
func (u *uncommitted) journalled(p string, w written, apply func() error) error {
	before := u.pending[p].clone()
	err := apply()
	held := u.held + u.pending[p].bytes(p) - before.bytes(p)
	if err == nil && held > UncommittedBytesMax && held > u.held {
		err = fmt.Errorf("state path %q: %w: %d bytes would be written and not committed, at most %d: "+
			"commit first (POST /v1/self/state/commit)",
			p, pando.ErrTooLarge, held, UncommittedBytesMax)
	}
	if err == nil {
		err = u.note(w)
	}
	if err == nil {
		if u.held = held; u.noted > rewriteBytes+u.kept/4+u.kept {
			u.rewrite()
		}
		return nil
	}
	if u.pending[p] = before; before == nil {
		delete(u.pending, p)
	}
	return err
}

// note adds a record to the journal.
func (u *uncommitted) note(w written) error {
	if u.journal == nil {
		return nil
	}
	record, err := json.Marshal(w)
	if err == nil {
		err = u.journal.Append(record)
	}
	if err != nil {
		return fmt.Errorf("keep the writes of %s: %w", u.author, err)
	}
	u.noted += len(record)
	return nil
}

// rewrite replaces the journal with the pending changes: none, after a commit. If that fails, it
// returns false, and the longer journal with the same content stays.
func (u *uncommitted) rewrite() bool {
	if u.journal == nil || u.noted == 0 {
		return true
	}
	var records [][]byte
	kept := 0
	for p, c := range u.pending {
		for _, w := range c.writes(p) {
			record, err := json.Marshal(w)
			if err != nil {
				return false
			}
			records = append(records, record)
			kept += len(record)
		}
	}
	if u.journal.Rewrite(records) != nil {
		return false
	}
	u.noted, u.kept, u.lost = kept, kept, nil
	if !u.mark.IsZero() {
		u.mark = pando.ObjectID{}
		u.unmark()
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
func (u *uncommitted) recall(journals pando.Journals, objects pando.Objects) error {
	if journals == nil {
		return nil
	}
	var err error
	if u.journal, err = journals.Journal(u.author); err != nil {
		return fmt.Errorf("open the journal of %s: %w", u.author, err)
	}
	records, err := u.journal.Records()
	for n := 0; err == nil && n < len(records); n++ {
		u.noted += len(records[n])
		err = u.redo(records[n], objects)
	}
	if err != nil {
		u.lost, u.pending = err, map[string]*change{}
	}
	for p, c := range u.pending {
		u.held += c.bytes(p)
	}
	return nil
}

func (u *uncommitted) redo(record []byte, objects pando.Objects) error {
	var w written
	if err := json.Unmarshal(record, &w); err != nil {
		return err
	}
	switch {
	case !w.Commit.IsZero():
		_, _, err := objects.Object(w.Commit)
		if err == nil { // it was made and has the writes before it
			u.pending, u.mark = map[string]*change{}, w.Commit
		} else if !errors.Is(err, pando.ErrNotFound) {
			return err
		}
		return nil
	case w.Put != "":
		return u.put(w.Put, w.Value)
	case w.Delete != "":
		return u.remove(w.Delete)
	}
	return u.patch(w.Patch, w.Value)
}

// complete returns an error, once, if an earlier write of the instance is gone.
func (u *uncommitted) complete() error {
	if u.lost == nil {
		return nil
	}
	err := fmt.Errorf("commit the state of %s: %w: its writes since the last commit (%w); nothing "+
		"was committed: write them again, then commit",
		u.author, pando.ErrLost, u.lost)
	u.noted = max(u.noted, 1)
	u.rewrite()
	return err
}
