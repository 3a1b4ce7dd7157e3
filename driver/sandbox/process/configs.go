package process

import (
	"context"
	"fmt"
	"path"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// Reconfigure implements pando.Sandbox. A refused candidate stays in .next, so that an operator can
// run the check again.
func (b *sandbox) Reconfigure(ctx context.Context, c pando.ConfigChange) (bool, error) {
	r, err := b.askSoon(ctx, wire.Request{Verb: "configure", Config: &c.ConfigFile})
	if err != nil || len(r.Names) == 0 {
		return false, err
	}
	if len(c.Check) > 0 {
		command := c.CheckOf(path.Join(pando.ConfigsNext, c.Name))
		code, output, err := b.Exec(ctx, command)
		if err != nil {
			return false, fmt.Errorf("run the check of the config %s: %w", c.Name, err)
		}
		if code != 0 {
			return false, &pando.CheckFailed{Config: c.Name, Command: command, Code: code,
				Output: output}
		}
	}
	c.Content = nil
	_, err = b.askSoon(ctx, wire.Request{Verb: "configure", Config: &c.ConfigFile, Install: true,
		Signal: pando.SignalNumber(c.OnChange)})
	return err == nil, err
}

// askSoon asks the shim, which answers at once.
func (b *sandbox) askSoon(ctx context.Context, q wire.Request) (wire.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, shimWaitMax)
	defer cancel()
	return b.ask(ctx, q)
}
