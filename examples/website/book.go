package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"pando.run/sdk"
)

// pushEvery is the maximum age of this instance's state in main.
const pushEvery = 2 * time.Second

// book writes the lines of answered requests to the state of the service.
type book struct {
	site   *site
	state  pando.State
	dirty  bool // a commit is not pushed yet
	pushed time.Time
}

// write commits the lines of new requests, and pushes every pushEvery.
func (b *book) write(ctx context.Context) error {
	lines := b.site.take()
	if len(lines) > 0 {
		if err := b.commit(ctx, lines); err != nil {
			b.site.giveBack(lines)
			return err
		}
		b.dirty = true
	}
	if !b.dirty || time.Since(b.pushed) < pushEvery {
		return nil
	}
	return b.push(ctx)
}

// commit writes lines and their number in one step: all or nothing, even if the agent is killed
// meanwhile.
func (b *book) commit(ctx context.Context, lines []string) error {
	return b.state.CommitChange(ctx, pando.Change{Patch: map[string]string{
		"access.log": strings.Join(lines, "\n") + "\n",
		"requests":   strconv.Itoa(len(lines)),
	}})
}

func (b *book) push(ctx context.Context) error {
	if _, err := b.state.Push(ctx); err != nil {
		return err
	}
	b.dirty, b.pushed = false, time.Now()
	return nil
}

// close writes and pushes all remaining lines.
func (b *book) close(ctx context.Context) error {
	if b.site.remote != nil {
		return nil
	}
	if err := b.write(ctx); err != nil {
		return err
	}
	return b.push(ctx)
}
