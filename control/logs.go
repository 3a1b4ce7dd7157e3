package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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
		h, err := c.mirror.HostOf(s, i)
		if errors.Is(err, pando.ErrNotFound) {
			return c.logOfDead(ctx, s, i, q)
		}
		if err != nil {
			return nil, err
		}
		return c.peers.Logs(ctx, h, s, []pando.InstanceID{i}, q)
	}
	st, err := c.statuses.Service(ctx, s)
	if err != nil {
		return nil, err
	}
	var first []pando.LogLines
	if len(st.Instances) == 0 {
		first = append(first, c.newestDead(ctx, s, q))
	}
	notes := awayNotes(st, c.mirror.Clock.Now())
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
	hosts := c.mirror.Hosts()
	c.mirror.Mu.Lock()
	home := c.mirror.World.Services[s].V.Home
	c.mirror.Mu.Unlock()
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
		lines, err := c.peers.Logs(ctx, h, s, []pando.InstanceID{i}, q)
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
	c.mirror.Mu.Lock()
	all := c.mirror.World.DecisionsOf(s)
	c.mirror.Mu.Unlock()
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
	for _, h := range c.mirror.Hosts() {
		if len(of[h.Name]) == 0 {
			continue
		}
		lines, err := c.peers.Logs(ctx, h, st.ServiceKey, of[h.Name], q)
		switch {
		case err == nil:
			read = append(read, lines)
		case !errors.Is(err, pando.ErrNotFound):
			for _, i := range of[h.Name] {
				failed = append(failed, unread(i, err.Error(), c.mirror.Clock.Now()))
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
		marks: map[pando.InstanceID]mark{}, silent: map[pando.HostName]int{},
	}
	for _, l := range first {
		f.mixer.Add(l, nil)
	}
	go f.run(ctx)
	return f
}

// follower follows the logs of one service for one caller. run owns its maps.
type follower struct {
	streams *streams
	service pando.ServiceKey
	query   pando.LogQuery
	mixer   *logs.Mixer
	cancel  context.CancelFunc
	open    map[pando.InstanceID]bool // instances with a source
	marks   map[pando.InstanceID]mark // instances whose source broke off
	first   map[pando.InstanceID]bool // instances at the first look
	ended   chan broken
	silent  map[pando.HostName]int // looks in turn without an answer
}

// mark is the end of what the caller has of an instance's log: the time of the last lines, their
// number, and the host that has the log. Each instance has its own: hosts have different clocks, and
// one source may break off long before another.
type mark struct {
	at   time.Time
	same int
	host pando.HostName
	left int // looks at the log of an instance that is gone
}

// broken is the end of a source.
type broken struct {
	ids   []pando.InstanceID
	marks map[pando.InstanceID]mark
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
	for ctx.Err() == nil {
		st, err := f.streams.statuses.Service(ctx, f.service)
		if err == nil || errors.Is(err, pando.ErrNotFound) {
			f.openNew(ctx, st)
			f.openGone(ctx, st)
			nameSilent(ctx, f, st)
		}
		if errors.Is(err, pando.ErrNotFound) && len(f.open) == 0 && len(f.marks) == 0 {
			return // the service is gone, and its last log has ended
		}
		timer, stop := f.streams.mirror.Clock.After(followWait)
		select {
		case <-ctx.Done():
		case <-timer:
		case b := <-f.ended:
			for _, i := range b.ids {
				delete(f.open, i)
			}
			maps.Copy(f.marks, b.marks)
			_ = pando.Sleep(ctx, f.streams.mirror.Clock, followWait) // its host may be restarting its agent
		}
		stop()
	}
}

// openNew opens the logs of instances without a source: in one request per host for those whose
// source broke off, in another for the others, and in one of its own for an instance that starts,
// because it may have no log yet.
func (f *follower) openNew(ctx context.Context, st pando.ServiceStatus) {
	if f.first == nil {
		f.first = map[pando.InstanceID]bool{}
		for _, i := range st.Instances {
			f.first[i.ID] = true
		}
	}
	type group struct {
		host   pando.HostName
		resume bool
		alone  pando.InstanceID
		fresh  bool
	}
	groups := map[group][]pando.InstanceID{}
	for _, i := range st.Instances {
		if f.open[i.ID] || i.Away != "" {
			continue
		}
		_, resume := f.marks[i.ID]
		g := group{host: i.Host, resume: resume, fresh: !resume && !f.first[i.ID]}
		if i.Phase == pando.PhasePlaced || i.Phase == pando.PhaseStarting {
			g.alone = i.ID
		}
		groups[g] = append(groups[g], i.ID)
	}
	for _, h := range f.streams.mirror.Hosts() {
		for g, ids := range groups {
			if g.host == h.Name {
				f.add(ctx, h, ids, g.fresh)
			}
		}
	}
}

// goneLooksMax is how often the rest of the log of an instance is looked for that ended while its
// source was broken off.
const goneLooksMax = 30

// openGone reads the rest of the logs of instances that ended while their source was broken off.
func (f *follower) openGone(ctx context.Context, st pando.ServiceStatus) {
	here := map[pando.InstanceID]bool{}
	for _, i := range st.Instances {
		here[i.ID] = true
	}
	hosts := f.streams.mirror.Hosts()
	for i, m := range f.marks {
		if here[i] || f.open[i] {
			continue
		}
		at := slices.IndexFunc(hosts, func(h pando.Host) bool { return h.Name == m.host })
		if m.left++; at < 0 || m.left > goneLooksMax {
			delete(f.marks, i)
			continue
		}
		f.marks[i] = m
		q := f.resumed([]pando.InstanceID{i})
		q.Follow = false
		lines, err := f.streams.peers.Logs(ctx, hosts[at], f.service, []pando.InstanceID{i}, q)
		if err == nil {
			f.mixer.Add(&resumption{LogLines: lines, skip: map[pando.InstanceID]mark{i: m}}, nil)
		}
		if err == nil || errors.Is(err, pando.ErrNotFound) {
			delete(f.marks, i)
		}
	}
}

// resumed returns the query for the rest of the logs of instances with marks. Lines that the caller
// has are left out as they arrive.
func (f *follower) resumed(ids []pando.InstanceID) pando.LogQuery {
	q := f.query
	q.Lines = pando.LogLinesMax
	var since time.Time
	for n, i := range ids {
		if at := f.marks[i].at; n == 0 || at.Before(since) {
			since = at
		}
	}
	if since.After(q.Since) {
		q.Since = since
	}
	return q
}

// add follows the logs of instances of one host: from their marks on if they have some, and from
// their beginning if they are fresh. After a failure the next look tries again.
func (f *follower) add(ctx context.Context, h pando.Host, ids []pando.InstanceID, fresh bool) {
	q := f.query
	if fresh {
		q.Lines = pando.LogLinesMax
	}
	skip := map[pando.InstanceID]mark{}
	for _, i := range ids {
		if m, ok := f.marks[i]; ok {
			skip[i] = m
		}
	}
	if len(skip) > 0 {
		q = f.resumed(ids)
	}
	lines, err := f.streams.peers.Logs(ctx, h, f.service, ids, q)
	if err != nil {
		return
	}
	for _, i := range ids {
		f.open[i] = true
		delete(f.marks, i)
	}
	r := &resumption{LogLines: lines, host: h.Name, skip: skip,
		marks: make(map[pando.InstanceID]mark, len(ids))}
	maps.Copy(r.marks, skip)
	f.mixer.Add(r, func(pando.LogLine) {
		for _, i := range ids {
			if _, ok := r.marks[i]; !ok && f.query.Lines > 0 {
				r.marks[i] = mark{host: h.Name} // it had no lines: all later ones are new
			}
		}
		select {
		case f.ended <- broken{ids, r.marks}:
		case <-ctx.Done():
		}
	})
}

// resumption passes the lines of a source on, without those that the caller has, and keeps the
// marks of its instances.
type resumption struct {
	pando.LogLines
	host  pando.HostName
	skip  map[pando.InstanceID]mark // same counts down
	marks map[pando.InstanceID]mark // nil: none are kept
}

// Next implements pando.LogLines.
func (r *resumption) Next() (pando.LogLine, error) {
	for {
		l, err := r.LogLines.Next()
		if err != nil {
			return l, err
		}
		if m, ok := r.skip[l.Instance]; ok {
			if l.At.Before(m.at) {
				continue
			}
			if l.At.Equal(m.at) && m.same > 0 {
				m.same--
				r.skip[l.Instance] = m
				continue
			}
		}
		if r.marks != nil {
			m := r.marks[l.Instance]
			if !m.at.Equal(l.At) {
				m = mark{at: l.At}
			}
			m.same, m.host, m.left = m.same+1, r.host, 0
			r.marks[l.Instance] = m
		}
		return l, nil
	}
}

// Bounds of the check of hosts whose logs are followed.
const (
	answerWait  = time.Second // for the answer of a host
	silentLooks = 2           // without an answer in turn: the host is named
)

// nameSilent adds a line for each followed instance whose host stops to answer, and another when the
// host answers again. Their source alone shows neither: a program that prints nothing looks the same.
func nameSilent(ctx context.Context, f *follower, st pando.ServiceStatus) {
	of := map[pando.HostName][]pando.InstanceID{}
	for _, i := range st.Instances {
		if f.open[i.ID] {
			of[i.Host] = append(of[i.Host], i.ID)
		}
	}
	failed := map[pando.HostName]error{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, h := range f.streams.mirror.Hosts() {
		if len(of[h.Name]) == 0 {
			continue
		}
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, answerWait)
			defer cancel()
			if _, err := f.streams.peers.Losses(ctx, h); errors.Is(err, pando.ErrUnreachable) {
				mu.Lock()
				defer mu.Unlock()
				failed[h.Name] = err
			}
		})
	}
	asking.Wait()
	for h, ids := range of {
		var line func(pando.InstanceID) pando.LogLine
		now, err := f.streams.mirror.Clock.Now(), failed[h]
		switch {
		case err == nil && f.silent[h] >= silentLooks:
			line = func(i pando.InstanceID) pando.LogLine {
				return pando.LogLine{At: now, Instance: i, Text: "(its log can be read again)"}
			}
			fallthrough
		case err == nil:
			delete(f.silent, h)
		default:
			if f.silent[h]++; f.silent[h] == silentLooks {
				line = func(i pando.InstanceID) pando.LogLine { return unread(i, err.Error(), now) }
			}
		}
		if line != nil {
			var said []pando.LogLine
			for _, i := range ids {
				said = append(said, line(i))
			}
			f.mixer.Add(logs.Slice(said), nil)
		}
	}
}
