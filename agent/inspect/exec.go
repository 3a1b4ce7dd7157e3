package inspect

import (
	"context"
	"fmt"
	"io"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
)

// sessions counts the commands that callers run inside instances of this host, by tenant.
type sessions = share.Pool[pando.Tenant]

func newSessions() *sessions {
	return share.New[pando.Tenant](share.Bound{Total: pando.SessionsMax,
		Each: pando.SessionsOfTenantMax, Reserve: pando.SessionsReserve})
}

// enter takes a place for a session. A session of a token counts for its tenant.
func (w *Inspector) enter(ctx context.Context) (*share.Hold[pando.Tenant], error) {
	t, token := access.TokenOf(ctx)
	take := w.sessions.TakeAsOperator
	if token {
		take = func(n int64) (*share.Hold[pando.Tenant], error) { return w.sessions.Take(t.Tenant, n) }
	}
	place, err := take(1)
	if err != nil {
		return nil, fmt.Errorf("one more session on host %s: %w; end one of them", w.Host, err)
	}
	return place, nil
}

// Exec implements pando.HostAgent.
func (w *Inspector) Exec(
	ctx context.Context, i pando.InstanceID, s pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	r, err := w.Agent.Runner(i)
	if err != nil {
		return nil, err
	}
	now := r.Status()
	if !now.Runs {
		return nil, fmt.Errorf("%w: the program of instance %s does not run", pando.ErrConflict, i)
	}
	place, err := w.enter(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := now.Box.Session(ctx, s)
	if err != nil {
		place.Close()
		return nil, err
	}
	return &counted{ReadWriteCloser: conn, leave: place.Close}, nil
}

// counted is a session that frees its place when it closes.
type counted struct {
	io.ReadWriteCloser
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.ReadWriteCloser.Close()
}
