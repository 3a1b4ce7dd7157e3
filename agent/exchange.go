package agent

import (
	"context"
	"io"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
)

// exchange answers other hosts that keep copies of the same states.
type exchange struct{ to *branch.Branches }

// TakeState implements pando.HostAgent.
func (e *exchange) TakeState(
	ctx context.Context, from pando.HostName, r io.Reader,
) (pando.Receipt, error) {
	return e.to.TakeState(ctx, from, r)
}

// GiveState implements pando.HostAgent.
func (e *exchange) GiveState(ctx context.Context, q pando.StateWanted, w io.Writer) error {
	return e.to.GiveState(ctx, q, w)
}
