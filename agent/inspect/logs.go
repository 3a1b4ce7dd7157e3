package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/logs"
)

// logRest is how long a followed log stays open after its instance is gone, for its last lines.
const logRest = time.Second

// Logs implements pando.HostAgent. Lines of several instances come in the order of their times, or
// as they arrive if they are followed. Each service has its own folder of logs, so the log of
// another service's instance is not found.
func (w *Inspector) Logs(
	ctx context.Context, s pando.ServiceKey, ids []pando.InstanceID, q pando.LogQuery,
) (_ pando.LogLines, err error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	need, each := needOf(q, len(ids))
	q.Bytes = each
	hold, err := w.room.take(ctx, need+followOf(q, len(ids)))
	if err != nil {
		return nil, fmt.Errorf("lines of logs on host %s: %w; read or end other logs first, or ask for "+
			"fewer lines", w.Host, err)
	}
	var all []pando.LogLines
	defer func() {
		if err == nil {
			return
		}
		for _, l := range all {
			l.Close()
		}
		hold.Close()
	}()
	done, err := w.room.turn(ctx)
	if err != nil {
		return nil, fmt.Errorf("lines of logs on host %s: %w", w.Host, err)
	}
	defer done()
	unread, missing := int64(0), fmt.Errorf("log of no instance: %w", pando.ErrNotFound)
	for _, i := range ids {
		lines, err := w.OpenLog(ctx, s, i, q)
		switch {
		case err == nil:
			all, unread = append(all, lines), unread+unreadOf(lines, q.Bytes)
			if q.Follow {
				w.endWith(ctx, i, lines)
			}
		case errors.Is(err, pando.ErrNotFound):
			missing = err
		default:
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, missing
	}
	hold.Shrink(need - unread + followOf(q, len(ids)-len(all)))
	return &heldLines{LogLines: joined(all, q.Follow), hold: hold, unread: unread}, nil
}

// joined returns the lines of logs in the order of their times, or as they arrive if they are
// followed.
func joined(all []pando.LogLines, follow bool) pando.LogLines {
	if !follow {
		return logs.Merge(all...)
	}
	m := logs.NewMixer()
	for _, l := range all {
		m.Add(l, nil)
	}
	m.Finish()
	return m
}

// endWith closes the followed log of an instance soon after its record is gone, or with ctx.
func (w *Inspector) endWith(ctx context.Context, i pando.InstanceID, lines pando.LogLines) {
	go func() {
		defer lines.Close()
		gone := func() bool { _, there := w.Records.World.Instances[i]; return !there }
		if w.Records.Wait(ctx, gone) == nil {
			_ = pando.Sleep(ctx, w.Clock, logRest)
		}
	}()
}
