package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/logs"
)

// Logs implements pando.Operators.
func (c *streams) Logs(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	if i != "" {
		h, err := c.hostOf(i)
		if errors.Is(err, pando.ErrNotFound) {
			return c.logOfDead(ctx, s, i, q)
		}
		if err != nil {
			return nil, err
		}
		return c.Peers.Logs(ctx, h, []pando.InstanceID{i}, q)
	}
	st, err := c.Service(ctx, s)
	if err != nil {
		return nil, err
	}
	var first []pando.LogLines
	if len(st.Instances) == 0 {
		first = append(first, c.newestDead(ctx, s, q))
	}
	notes := awayNotes(st, c.Clock.Now())
	if q.Follow {
		return c.following(ctx, s, q, append(first, logs.Slice(notes))), nil
	}
	read, failed := c.everyLog(ctx, st, q)
	all := append(append(first, read...), logs.Slice(append(notes, failed...)))
	return logs.Merge(all...), nil
}

// logOfDead looks for the log of an instance that is gone: first at the home of its service, then
// on every other host. Such a log does not grow, so it is never followed.
func (c *streams) logOfDead(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	hosts := c.hosts()
	c.mu.Lock()
	home := c.world.Services[s].V.Home
	c.mu.Unlock()
	slices.SortStableFunc(hosts, func(a, b pando.Host) int {
		if (a.Name == home) != (b.Name == home) {
			return map[bool]int{true: -1, false: 1}[a.Name == home]
		}
		return 0
	})
	missing := fmt.Errorf("instance %s: %w", i, pando.ErrNotFound)
	if strings.ContainsAny(string(i), `/*?[\`) { // a host looks for a folder of this name
		return nil, missing
	}
	q.Follow = false
	for _, h := range hosts {
		lines, err := c.Peers.Logs(ctx, h, []pando.InstanceID{i}, q)
		if err == nil {
			return lines, nil
		}
		if !errors.Is(err, pando.ErrNotFound) {
			missing = fmt.Errorf("log of instance %s: %w", i, err)
		}
	}
	return nil, missing
}

// deadLooksMax is how many of the newest dead instances of a service are searched for a log.
const deadLooksMax = 3

// newestDead returns the lines of the newest dead instance that has any, after a line that reports
// its death.
func (c *streams) newestDead(
	ctx context.Context, s pando.ServiceKey, q pando.LogQuery,
) pando.LogLines {
	c.mu.Lock()
	all := c.world.DecisionsOf(s)
	c.mu.Unlock()
	var dead []pando.InstanceID
	for _, d := range slices.Backward(all) {
		if d.Instance != "" && len(dead) < deadLooksMax && !slices.Contains(dead, d.Instance) {
			dead = append(dead, d.Instance)
		}
	}
	for _, i := range dead {
		lines, err := c.logOfDead(ctx, s, i, q)
		if err != nil {
			continue
		}
		first, err := lines.Next()
		if err != nil {
			lines.Close()
			continue
		}
		note := fmt.Sprintf("(it is gone; no instance of %s lives)", s)
		return logs.Merge(
			logs.Slice([]pando.LogLine{{At: first.At, Instance: i, Text: note}, first}), lines)
	}
	return logs.Slice(nil)
}

// awayNotes returns a line for each instance on a host that is away.
func awayNotes(st pando.ServiceStatus, now time.Time) (out []pando.LogLine) {
	for _, i := range st.Instances {
		if i.Away != "" {
			out = append(out, unread(i.ID, i.Away, now))
		}
	}
	return out
}

func unread(i pando.InstanceID, why string, now time.Time) pando.LogLine {
	return pando.LogLine{
		At: now, Instance: i, Text: fmt.Sprintf("(its log cannot be read now: %s)", why),
	}
}

// everyLog returns the lines of a service's instances, one source per host. failed has a line for
// each instance on a host that does not answer.
func (c *streams) everyLog(
	ctx context.Context, st pando.ServiceStatus, q pando.LogQuery,
) (read []pando.LogLines, failed []pando.LogLine) {
	of := map[pando.HostName][]pando.InstanceID{}
	for _, i := range st.Instances {
		of[i.Host] = append(of[i.Host], i.ID)
	}
	for _, h := range c.hosts() {
		if len(of[h.Name]) == 0 {
			continue
		}
		lines, err := c.Peers.Logs(ctx, h, of[h.Name], q)
		switch {
		case err == nil:
			read = append(read, lines)
		case !errors.Is(err, pando.ErrNotFound):
			for _, i := range of[h.Name] {
				failed = append(failed, unread(i, err.Error(), c.Clock.Now()))
			}
		}
	}
	return read, failed
}

// followWait is the time between two looks for logs that are not followed yet.
const followWait = time.Second

// following returns the lines of all instances of a service, also of those that start later, until
// ctx ends or the caller closes it. A log that broke off is opened again where it ended.
func (c *streams) following(
	ctx context.Context, s pando.ServiceKey, q pando.LogQuery, first []pando.LogLines,
) pando.LogLines {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{
		streams: c, service: s, query: q, mixer: logs.NewMixer(), cancel: cancel,
		open: map[pando.InstanceID]bool{}, ended: make(chan broken),
	}
	for _, l := range first {
		f.mixer.Add(l, nil)
	}
	go f.run(ctx)
	return f
}

// follower follows the logs of one service for one caller.
type follower struct {
	*streams
	service pando.ServiceKey
	query   pando.LogQuery
	mixer   *logs.Mixer
	cancel  context.CancelFunc
	open    map[pando.InstanceID]bool // instances with a source; run owns it
	ended   chan broken
}

// broken is the end of a source: of these instances, after this line.
type broken struct {
	ids  []pando.InstanceID
	last pando.LogLine
}

// Next implements pando.LogLines.
func (f *follower) Next() (pando.LogLine, error) { return f.mixer.Next() }

// Close implements pando.LogLines.
func (f *follower) Close() error {
	f.cancel()
	return f.mixer.Close()
}

// run opens the logs of instances as they appear.
func (f *follower) run(ctx context.Context) {
	defer f.mixer.Close()
	seen := time.Time{} // of the newest line of a source that broke off
	for ctx.Err() == nil {
		st, err := f.Service(ctx, f.service)
		if errors.Is(err, pando.ErrNotFound) && len(f.open) == 0 {
			return // the service is gone, and its last log has ended
		}
		f.openNew(ctx, st, seen)
		timer, stop := f.Clock.After(followWait)
		select {
		case <-ctx.Done():
		case <-timer:
		case b := <-f.ended:
			for _, i := range b.ids {
				delete(f.open, i)
			}
			if b.last.At.After(seen) {
				seen = b.last.At
			}
			_ = pando.Sleep(ctx, f.Clock, followWait) // its host may be restarting its agent
		}
		stop()
	}
}

// openNew opens the logs of instances without a source: in one request per host, and in one of its
// own for an instance that starts, because it may have no log yet.
func (f *follower) openNew(ctx context.Context, st pando.ServiceStatus, seen time.Time) {
	q := f.query
	if seen.After(q.Since) {
		q.Since, q.Lines = seen.Add(time.Nanosecond), pando.LogLinesMax
	}
	groups := map[pando.HostName][][]pando.InstanceID{}
	for _, i := range st.Instances {
		if f.open[i.ID] || i.Away != "" {
			continue
		}
		of := groups[i.Host]
		starts := i.Phase == pando.PhasePlaced || i.Phase == pando.PhaseStarting
		if len(of) == 0 {
			of = append(of, nil)
		}
		if starts {
			of = append(of, []pando.InstanceID{i.ID})
		} else {
			of[0] = append(of[0], i.ID)
		}
		groups[i.Host] = of
	}
	for _, h := range f.hosts() {
		for _, ids := range groups[h.Name] {
			if len(ids) > 0 {
				f.add(ctx, h, ids, q)
			}
		}
	}
}

// add follows the logs of instances of one host. After a failure the next look tries again.
func (f *follower) add(
	ctx context.Context, h pando.Host, ids []pando.InstanceID, q pando.LogQuery,
) {
	lines, err := f.Peers.Logs(ctx, h, ids, q)
	if err != nil {
		return
	}
	for _, i := range ids {
		f.open[i] = true
	}
	f.mixer.Add(lines, func(last pando.LogLine) {
		select {
		case f.ended <- broken{ids, last}:
		case <-ctx.Done():
		}
	})
}
