package state

import (
	"context"
	"fmt"
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
		b.taken(b.head)
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
	b.taken(b.head)
	return id, nil
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
	before := b.clone()
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
