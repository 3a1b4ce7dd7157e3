package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/logs"
)

// window shows operators the instances of this host: their logs, their use, and their inside.
type window struct {
	agent    *Agent
	sessions *sessions
}

// logRest is how long a followed log stays open after its instance is gone, for its last lines.
const logRest = time.Second

// Logs implements pando.HostAgent. Lines of several instances come in the order of their times, or
// as they arrive if they are followed. Each service has its own folder of logs, so the log of
// another service's instance is not found.
func (w *window) Logs(
	ctx context.Context, s pando.ServiceKey, ids []pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	a := w.agent
	var all []pando.LogLines
	missing := fmt.Errorf("log of no instance: %w", pando.ErrNotFound)
	for _, i := range ids {
		lines, err := a.OpenLog(ctx, s, i, q)
		switch {
		case err == nil:
			all = append(all, lines)
			if q.Follow {
				w.endWith(ctx, i, lines)
			}
		case errors.Is(err, pando.ErrNotFound):
			missing = err
		default:
			for _, l := range all {
				l.Close()
			}
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, missing
	}
	if !q.Follow {
		return logs.Merge(all...), nil
	}
	m := logs.NewMixer()
	for _, l := range all {
		m.Add(l, nil)
	}
	m.Finish()
	return m, nil
}

// endWith closes the followed log of an instance soon after its record is gone, or with ctx.
func (w *window) endWith(ctx context.Context, i pando.InstanceID, lines pando.LogLines) {
	go func() {
		defer lines.Close()
		gone := func() bool { _, there := w.agent.world.Instances[i]; return !there }
		if w.agent.wait(ctx, gone) == nil {
			_ = pando.Sleep(ctx, w.agent.Clock, logRest)
		}
	}()
}
