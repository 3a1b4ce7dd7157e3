package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"pando.run/pando"
)

// Commit makes all earlier writes durable. Without any, it returns the head.
func (b *Branch) Commit(
	ctx context.Context, message string, now time.Time,
) (pando.ObjectID, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.complete(); err != nil {
		return b.head, err
	}
	return b.commit(ctx, message, now)
}

func (b *Branch) commit(
	ctx context.Context, message string, now time.Time,
) (pando.ObjectID, error) {
	if len(b.pending) == 0 {
		return b.head, nil
	}
	w := b.repo.work()
	head, err := w.commit(b.head)
	if err != nil {
		return b.head, fmt.Errorf("commit the state of %s: %w", b.instance, err)
	}
	root, err := b.applied(w)
	if err != nil {
		return b.head, fmt.Errorf("commit the state of %s: %w", b.instance, err)
	}
	if head.tree == root {
		b.taken()
		return b.head, nil
	}
	if message == "" {
		message = "commit"
	}
	c := commit{tree: root, parents: []pando.ObjectID{b.head}, author: b.instance,
		at: latest(now, head.at), message: clean(message)}
	id := w.put(pando.CommitObject, c.encode(b.repo.service))
	if b.noted > 0 { // so that the next Born sees whether the commit was made
		if err := b.note(written{Commit: id}); err != nil {
			return b.head, err
		}
	}
	if err := b.move(ctx, w, place{head: id, base: b.base, since: b.since}); err != nil {
		return b.head, err
	}
	b.taken()
	return id, nil
}

// taken clears the pending changes: a commit has them.
func (b *Branch) taken() {
	b.pending, b.held = map[string]*change{}, 0
	if !b.rewrite() {
		b.mark = b.head
	}
}

// CommitChange writes a change on top of the pending writes and commits both. With an error it
// writes nothing of the change.
func (b *Branch) CommitChange(
	ctx context.Context, c pando.StateChange, now time.Time,
) (pando.ObjectID, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.complete(); err != nil {
		return b.head, err
	}
	before := map[string]*change{}
	for p, old := range b.pending {
		before[p] = old.clone()
	}
	err := b.write(c)
	if err == nil {
		var id pando.ObjectID
		if id, err = b.commit(ctx, c.Message, now); err == nil {
			return id, nil
		}
	}
	b.pending = before
	return b.head, err
}

// write adds a change to the pending ones. The caller holds the lock.
func (b *Branch) write(c pando.StateChange) error {
	seen := map[string]bool{}
	once := func(p string) error {
		if seen[p] {
			return fmt.Errorf("%w: state path %q is in one change twice", pando.ErrInvalid, p)
		}
		seen[p] = true
		return nil
	}
	for _, p := range c.Delete {
		if err := errors.Join(once(p), b.remove(p)); err != nil {
			return err
		}
	}
	for p, value := range c.Put {
		if err := errors.Join(once(p), b.put(p, []byte(value))); err != nil {
			return err
		}
	}
	for p, delta := range c.Patch {
		if err := errors.Join(once(p), b.patch(p, []byte(delta))); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) clone() *change {
	if c == nil {
		return nil
	}
	d := *c
	// An append to one copy is invisible in the other. Values are replaced, never changed.
	d.add = slices.Clip(c.add)
	d.plus, d.minus = maps.Clone(c.plus), maps.Clone(c.minus)
	return &d
}

// messageBytesMax is the kept length of a message.
const messageBytesMax = 1 << 10

// clean keeps a message from looking like the head of a commit, or like several lines.
func clean(message string) string {
	words := strings.FieldsFunc(message,
		func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	message = strings.ToValidUTF8(strings.Join(words, " "), "\uFFFD")
	if len(message) > messageBytesMax {
		message = strings.ToValidUTF8(message[:messageBytesMax], "") + "…"
	}
	return message
}
