package process

import (
	"context"
	"fmt"
	"io"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// Session implements pando.Sandbox. The shim starts the command as it starts a probe's:
// with the user, cgroup, namespaces and filters of the program.
func (b *sandbox) Session(ctx context.Context, s pando.SessionSpec) (io.ReadWriteCloser, error) {
	if s.Port != 0 {
		return b.connection(ctx, s.Port)
	}
	c, err := dialShim(b.slot)
	if err != nil {
		return nil, fmt.Errorf("run a command in %s: %w", b.slot.Instance, err)
	}
	begin, cancel := context.WithTimeout(ctx, shimWaitMax)
	defer cancel()
	r, _, err := converse(begin, c, wire.Request{Verb: "session", Session: &s})
	if err != nil {
		if b.slot.alive() && ctx.Err() == nil && begin.Err() != nil {
			b.doubts()
		}
		err = b.slot.unanswered(begin, err)
	}
	if err == nil && r.Error != "" {
		err = fmt.Errorf("%w: %s", pando.ErrInvalid, r.Error)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("run a command in %s: %w", b.slot.Instance, err)
	}
	return c, nil
}
