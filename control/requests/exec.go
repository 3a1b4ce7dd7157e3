package requests

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/lifeline"
	"pando.run/pando/api/session"
	"pando.run/pando/control/status"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// visitsKept is how many sessions of a service are remembered.
const visitsKept = 40

// Exec implements pando.Operators. The record of the session is durable before its command starts,
// and gets the exit code at its end.
func (c *desk) Exec(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, spec pando.SessionSpec,
	by pando.Asker,
) (io.ReadWriteCloser, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	on, h, err := c.visited(s, i)
	if err == nil && spec.Port == 0 { // a connection runs no command
		err = c.mayEnter(ctx, s, on)
	}
	if err != nil {
		return nil, err
	}
	by.Request, by.Seen = "", 0
	now := c.mirror.Clock.Now()
	d := pando.Decision{
		ID: c.mirror.IDs.Sequential(now), Service: s, Instance: on, Kind: kindOf(spec), By: by, At: now,
		Reason: about(spec) + ": it runs",
	}
	if err := c.remember(ctx, d); err != nil {
		return nil, fmt.Errorf("record the session: %w", err)
	}
	conn, err := c.peers.Exec(ctx, h, on, spec)
	if err != nil {
		d.Reason = about(spec) + ": it did not start: " + status.Cut(err.Error())
		c.rememberEnd(ctx, d)
		return nil, err
	}
	v := &visit{ReadWriteCloser: conn}
	v.ended = sync.OnceFunc(func() {
		d.Reason = fmt.Sprintf("%s: %s after %s", about(spec), v.outcome(),
			c.mirror.Clock.Now().Sub(now).Round(100*time.Millisecond))
		c.rememberEnd(ctx, d)
	})
	return v, nil
}

// mayEnter returns nil if the author of a request may run commands in an instance. A command has
// everything of the hosts that the instance has.
func (c *desk) mayEnter(ctx context.Context, s pando.ServiceKey, i pando.InstanceID) error {
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	on := c.mirror.World.Instances[i].V
	if _, token := pando.TokenOf(ctx); token {
		if stored, ok := c.mirror.World.SpecOf(s, on.Revision); ok && !on.RunsSpec(stored) {
			return fmt.Errorf("%w: instance %s runs another spec than the stored revision %d, so a token "+
				"may not enter it; `pando restart %s %[2]s` replaces it, and an operator may enter it",
				pando.ErrForbidden, i, on.Revision, s)
		}
	}
	return mayUse(ctx, c.mirror.World, s, on.Revision)
}

// kindOf returns the kind of a session's record. Many connections never push out the commands.
func kindOf(s pando.SessionSpec) pando.DecisionKind {
	if s.Port != 0 {
		return pando.DecidedForward
	}
	return pando.DecidedExec
}

// visited returns the instance for a session and its host. With i "" it is the first that serves.
func (c *desk) visited(
	s pando.ServiceKey, i pando.InstanceID,
) (pando.InstanceID, pando.Host, error) {
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	if _, ok := c.mirror.World.Services[s]; !ok {
		return "", pando.Host{}, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	all := c.mirror.World.Of(s)
	if runs := world.RunsOf(c.mirror.World, s); i != "" || len(all) == 0 { // a job has nothing but runs
		all = append(all, runs...)
	}
	var chosen *pando.Instance
	for _, one := range all {
		better := chosen == nil || rank(one.Phase) < rank(chosen.Phase)
		named := one.Ordinal > 0 && string(i) == pando.OrdinalName(s.Name, one.Ordinal)
		named = named && lifecycle.HasVolumes(one)
		if one.ID == i || named || i == "" && rank(one.Phase) < unfit && better {
			chosen = &one
		}
	}
	switch {
	case chosen == nil && i == "":
		return "", pando.Host{}, fmt.Errorf("%w: no instance of %s runs; `pando ps` lists them",
			pando.ErrConflict, s)
	case chosen == nil:
		return "", pando.Host{}, fmt.Errorf("instance %s of %s: %w; `pando ps` lists the instances",
			i, s, pando.ErrNotFound)
	}
	h, ok := c.mirror.World.Hosts[chosen.Host]
	if !ok {
		return "", h.V, fmt.Errorf("%w: host %s of instance %s is away; `pando hosts` shows it",
			pando.ErrUnreachable, chosen.Host, chosen.ID)
	}
	return chosen.ID, h.V, nil
}

// unfit is the rank of a phase in which no session is offered unless its instance is named.
const unfit = 3

func rank(p pando.Phase) int {
	order := []pando.Phase{pando.PhaseInRotation, pando.PhaseReady, pando.PhaseStarting}
	if n := slices.Index(order, p); n >= 0 {
		return n
	}
	return unfit
}

// remember writes the record of a session, and deletes the oldest beyond visitsKept.
func (c *desk) remember(ctx context.Context, d pando.Decision) error {
	return c.change(ctx, func(w *world.World, _ time.Time) (pando.Txn, error) {
		t := pando.Txn{Put: []pando.Stored{d}}
		before := slices.DeleteFunc(w.DecisionsOf(d.Service), func(o pando.Decision) bool {
			return o.Kind != d.Kind || o.ID == d.ID
		})
		for _, o := range before[:max(0, len(before)-visitsKept+1)] {
			t.Delete = append(t.Delete, o.Key())
		}
		return t, nil
	})
}

// recordWaitMax is how long the end of a session waits for its record. The start is on record.
const recordWaitMax = 10 * time.Second

// rememberEnd writes the outcome of a session, also after its caller has gone.
func (c *desk) rememberEnd(ctx context.Context, d pando.Decision) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWaitMax)
	defer cancel()
	c.mirror.Mu.Lock()
	_, there := c.mirror.World.Services[d.Service]
	c.mirror.Mu.Unlock()
	if !there {
		return // its records are deleted
	}
	if err := c.remember(ctx, d); err != nil {
		c.mirror.Log.Warn("the end of a session is not recorded", "instance", d.Instance, "error", err)
	}
}

// about returns the words of a session for the record.
func about(s pando.SessionSpec) string {
	if s.Port != 0 {
		return fmt.Sprintf("a connection to port %d", s.Port)
	}
	return words(s.Command)
}

// words returns the words of a command for the record.
func words(command []string) string {
	quoted := make([]string, len(command))
	for n, w := range command {
		if quoted[n] = w; w == "" || strings.ContainsAny(w, " \t\n'\"") {
			quoted[n] = fmt.Sprintf("%q", w)
		}
	}
	return status.Cut(strings.Join(quoted, " "))
}

// visit is a session that passes by, so that its outcome is known at its end.
type visit struct {
	io.ReadWriteCloser
	ended func()
	mu    sync.Mutex
	head  []byte // of the frame that arrives
	skip  int    // bytes of its content that are still to come
	exit  []byte // the content of the exit frame
	exits bool
	why   []byte // a frame with the reason of the end, for the caller
}

// Read implements io.Reader. If the agent falls silent, the caller gets the reason at the end.
func (v *visit) Read(b []byte) (int, error) {
	n, err := v.ReadWriteCloser.Read(b)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.follow(b[:n])
	if silent, is := errors.AsType[lifeline.Silence](err); is && v.why == nil && v.skip+len(v.head) == 0 {
		var frame bytes.Buffer
		// A buffer takes everything.
		_ = session.NewWriter(&frame).Send(session.Errors, []byte("pando: "+silent.Error()+"\n"))
		v.why = frame.Bytes()
	}
	if n == 0 && len(v.why) > 0 {
		n = copy(b, v.why)
		v.why = v.why[n:]
		return n, nil
	}
	return n, err
}

// follow finds the exit frame in the bytes that pass.
func (v *visit) follow(b []byte) {
	for len(b) > 0 {
		if v.skip > 0 {
			n := min(v.skip, len(b))
			if v.exits && len(v.exit)+n <= 100 {
				v.exit = append(v.exit, b[:n]...)
			}
			v.skip, b = v.skip-n, b[n:]
			continue
		}
		n := min(5-len(v.head), len(b))
		v.head, b = append(v.head, b[:n]...), b[n:]
		if len(v.head) == 5 {
			v.exits = session.Kind(v.head[0]) == session.Exit
			v.skip, v.head = int(binary.BigEndian.Uint32(v.head[1:])), v.head[:0]
		}
	}
}

// outcome returns the end of the session in words.
func (v *visit) outcome() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var end session.End
	if json.NewDecoder(bytes.NewReader(v.exit)).Decode(&end) != nil {
		return "it was ended"
	}
	return fmt.Sprintf("exit code %d", end.Code)
}

// Close ends the session and records its outcome.
func (v *visit) Close() error {
	err := v.ReadWriteCloser.Close()
	v.ended()
	return err
}
