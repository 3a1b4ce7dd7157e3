package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"pando.run/sdk"
)

// pushEvery is how old what others see of this instance may be.
const pushEvery = 2 * time.Second

// book writes what the site has answered to the state of the service.
type book struct {
	site   *site
	state  pando.State
	dirty  bool // something is committed and not pushed
	pushed time.Time
}

// write commits what has been answered since the last time, and pushes it now and then.
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

// commit writes lines and their number as one step: all of it or nothing, should the agent be killed meanwhile.
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

// close writes everything that is left.
func (b *book) close(ctx context.Context) error {
	if err := b.write(ctx); err != nil {
		return err
	}
	return b.push(ctx)
}
