package requests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pando.run/pando"
	"pando.run/pando/api/lifeline"
	"pando.run/pando/api/session"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sim"
)

var web = decidetest.Web

var anna = pando.Asker{Kind: pando.AskerOperator, Name: "anna"}

// answering hosts run every command as this output of frames.
type answering struct {
	pando.Peers
	output []byte
	err    error
	asked  []pando.InstanceID
}

func (h *answering) Exec(
	_ context.Context, on pando.Host, i pando.InstanceID, _ pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	h.asked = append(h.asked, i)
	return struct {
		io.Reader
		io.WriteCloser
	}{bytes.NewReader(h.output), discard{}}, h.err
}

type discard struct{ io.Writer }

func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) Close() error                { return nil }

// asking returns requests to hosts and to a store.
func asking(p pando.Peers, m *mirror.Mirror) *Requests {
	return New(Config{Mirror: m, Status: &status.Reader{Mirror: m}, Peers: p,
		Most: pando.ServicesMax})
}

// visitable is requests about a cluster with instances of web in every phase.
func visitable(t *testing.T, h *answering) *Requests {
	t.Helper()
	c := asking(h, mirror.New(sim.NewRegistry(1, 0), clock.Clock{}, &decidetest.Counting{},
		slog.New(slog.DiscardHandler), ""))
	all := []pando.Stored{pando.Host{Name: "h1"}, pando.Service{ServiceKey: web, Target: 1}}
	for n, phase := range []pando.Phase{pando.PhaseWarm, pando.PhaseReady, pando.PhaseInRotation,
		pando.PhaseInRotation, pando.PhaseDraining} {
		all = append(all, pando.Instance{Service: web, Host: "h1", Phase: phase,
			ID: pando.InstanceID(fmt.Sprintf("web-%d", n))})
	}
	all = append(all, pando.Instance{Service: web, Host: "gone", ID: "web-away",
		Phase: pando.PhaseReady})
	c.desk.mirror.World.Committed(pando.Txn{Put: all}, 1)
	return c
}

// sessions returns the records of sessions, oldest first.
func sessionsOf(c *Requests) []pando.Decision {
	return slices.DeleteFunc(c.desk.mirror.World.DecisionsOf(web),
		func(d pando.Decision) bool { return d.Kind != pando.DecidedExec })
}

func run(t *testing.T, c *Requests, i pando.InstanceID, words ...string) {
	t.Helper()
	by := pando.Asker{Kind: pando.AskerOperator, Name: "anna", Request: "r1"}
	conn, err := c.Exec(t.Context(), web, i, pando.SessionSpec{Command: words}, by)
	if err != nil {
		t.Fatal(err)
	}
	if last := sessionsOf(c); !strings.HasSuffix(last[len(last)-1].Reason, ": it runs") {
		t.Errorf("while it runs: %+v", last)
	}
	if _, err := io.CopyBuffer(io.Discard, conn, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // closed twice, recorded once
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASessionIsRecordedWithItsWordsAndItsEnd(t *testing.T) {
	var frames bytes.Buffer
	w := session.NewWriter(&frames)
	if err := errors.Join(w.Send(session.Output, bytes.Repeat([]byte{7, 0, 0}, 1000)),
		w.SendJSON(session.Exit, session.End{Code: 3})); err != nil {
		t.Fatal(err)
	}
	h := &answering{output: frames.Bytes()}
	c := visitable(t, h)
	run(t, c, "web-1", "sh", "-c", "echo 'a b'")
	h.output = frames.Bytes()[:frames.Len()-2]
	run(t, c, "", "ls", "")
	got := sessionsOf(c)
	if len(got) != 2 || got[0].By.Name != "anna" || got[0].Instance != "web-1" ||
		!strings.HasPrefix(got[0].Reason, `sh -c "echo 'a b'": exit code 3 after `) ||
		!strings.HasPrefix(got[1].Reason, `ls "": it was ended after `) {
		t.Errorf("recorded %+v", got)
	}
	if want := []pando.InstanceID{"web-1", "web-2"}; !slices.Equal(h.asked, want) {
		t.Errorf("run in %v, want %v: the named one, then the first in rotation", h.asked, want)
	}
}

// A job has runs only, and a run beside a service is entered by its name.
func TestARunIsEntered(t *testing.T) {
	h := &answering{}
	c := visitable(t, h)
	job := pando.DefaultService("job")
	run := func(s pando.ServiceKey, i pando.InstanceID, phase pando.Phase) pando.Instance {
		return pando.Instance{Service: s, Host: "h1", ID: i, Phase: phase, Run: &pando.RunPart{Number: 1}}
	}
	c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Service{ServiceKey: job, Target: 1}, run(job, "job-0", pando.PhaseDraining),
		run(job, "job-1", pando.PhaseStarting), run(web, "web-run", pando.PhaseStarting)}}, 2)
	for _, x := range []struct {
		s       pando.ServiceKey
		i, want pando.InstanceID
	}{{job, "", "job-1"}, {job, "job-0", "job-0"}, {web, "web-run", "web-run"}, {web, "", "web-2"}} {
		conn, err := c.Exec(t.Context(), x.s, x.i, pando.SessionSpec{Command: []string{"id"}}, pando.Asker{})
		if err != nil {
			t.Errorf("%s/%s: %v", x.s, x.i, err)
			continue
		}
		if err := conn.Close(); err != nil || h.asked[len(h.asked)-1] != x.want {
			t.Errorf("%s/%s: entered %v, %v, want %s", x.s, x.i, h.asked, err, x.want)
		}
	}
}

func TestTheNewestFortySessionsAreRemembered(t *testing.T) {
	c := visitable(t, &answering{})
	for n := range 45 {
		run(t, c, "", fmt.Sprint("command-", n))
	}
	got := sessionsOf(c)
	if len(got) != visitsKept || !strings.HasPrefix(got[0].Reason, "command-5:") ||
		!strings.HasPrefix(got[visitsKept-1].Reason, "command-44:") {
		t.Errorf("%d are remembered, the first %q", len(got), got[0].Reason)
	}
	long := words([]string{strings.Repeat("ä", 1000)})
	if len(long) > 406 {
		t.Errorf("a record of %d bytes", len(long))
	}
}

func TestASessionThatCannotBeginIsRefused(t *testing.T) {
	h := &answering{}
	c := visitable(t, h)
	ls := pando.SessionSpec{Command: []string{"ls"}}
	for _, x := range []struct {
		name string
		s    pando.ServiceKey
		i    pando.InstanceID
		spec pando.SessionSpec
		want error
	}{
		{"no service", pando.DefaultService("none"), "", ls, pando.ErrNotFound},
		{"no instance", web, "web-none", ls, pando.ErrNotFound},
		{"its host is away", web, "web-away", ls, pando.ErrUnavailable},
		{"no command", web, "", pando.SessionSpec{}, pando.ErrInvalid},
		{"an empty command", web, "", pando.SessionSpec{Command: []string{""}}, pando.ErrInvalid},
		{"a NUL", web, "", pando.SessionSpec{Command: []string{"a\x00"}}, pando.ErrInvalid},
		{"a long command", web, "", pando.SessionSpec{
			Command: []string{strings.Repeat("a", 1<<18)}}, pando.ErrTooLarge},
		{"no terminal", web, "", pando.SessionSpec{Command: ls.Command, Term: "a=b"}, pando.ErrInvalid},
	} {
		if _, err := c.Exec(t.Context(), x.s, x.i, x.spec, pando.Asker{}); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
	}
	if len(h.asked) > 0 || len(sessionsOf(c)) > 0 {
		t.Errorf("asked %v, recorded %v", h.asked, sessionsOf(c))
	}
	h.err = fmt.Errorf("%w: 16 sessions", pando.ErrRefused)
	if _, err := c.Exec(t.Context(), web, "", ls, pando.Asker{}); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("a refusal of the host: %v", err)
	}
	if got := sessionsOf(c); len(got) != 1 ||
		!strings.Contains(got[0].Reason, "ls: it did not start: refused: 16 sessions") {
		t.Errorf("recorded %+v", got)
	}
}

// silenced is a session whose agent becomes silent.
type silenced struct {
	io.Reader
	io.WriteCloser
}

// If the agent of a session falls silent, its caller gets the reason between two frames.
func TestASessionOfASilentAgentSaysWhy(t *testing.T) {
	var frames bytes.Buffer
	if err := session.NewWriter(&frames).Send(session.Output, []byte("begun")); err != nil {
		t.Fatal(err)
	}
	whole := frames.Bytes()
	for name, sent := range map[string][]byte{"between frames": whole, "in a frame": whole[:7]} {
		v := &visit{ended: func() {}, ReadWriteCloser: silenced{io.MultiReader(bytes.NewReader(sent),
			iotest.ErrReader(lifeline.Silence{})), discard{}}}
		text, err := io.ReadAll(v)
		in := bytes.NewReader(text)
		var kinds []session.Kind
		last := ""
		for in.Len() > 0 {
			kind, b, err := session.Read(in)
			if err != nil {
				break
			}
			kinds, last = append(kinds, kind), string(b)
		}
		said := slices.Equal(kinds, []session.Kind{session.Output, session.Errors}) &&
			strings.Contains(last, "no sign of life")
		if !errors.As(err, new(lifeline.Silence)) || said != (name == "between frames") {
			t.Errorf("%s: the caller got %v %q, then %v", name, kinds, last, err)
		}
	}
}
