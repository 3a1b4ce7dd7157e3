package control

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
	"time"

	"pando.run/pando"
	"pando.run/pando/api/lifeline"
	"pando.run/pando/api/session"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/driver/sim"
	"pando.run/pando/driver/wall"
)

// hosts run every command as this output of frames.
type hosts struct {
	pando.Peers
	output []byte
	err    error
	asked  []pando.InstanceID
}

func (h *hosts) Exec(
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

// visitable is a control with instances of web in every phase.
func visitable(t *testing.T, h *hosts) *Control {
	t.Helper()
	c := New(Config{Peers: h, Clock: wall.Clock{}, IDs: &decidetest.Counting{}, Registry: sim.NewRegistry(1, 0),
		Log: slog.New(slog.DiscardHandler)})
	all := []pando.Stored{pando.Host{Name: "h1"}, pando.Service{ServiceKey: web, Target: 1}}
	for n, phase := range []pando.Phase{pando.PhaseWarm, pando.PhaseReady, pando.PhaseInRotation,
		pando.PhaseInRotation, pando.PhaseDraining} {
		all = append(all, pando.Instance{Service: web, Host: "h1", Phase: phase,
			ID: pando.InstanceID(fmt.Sprintf("web-%d", n))})
	}
	all = append(all, pando.Instance{Service: web, Host: "gone", ID: "web-away",
		Phase: pando.PhaseReady})
	c.world.Committed(pando.Txn{Put: all}, 1)
	return c
}

// sessions returns the records of sessions, oldest first.
func sessionsOf(c *Control) []pando.Decision {
	return slices.DeleteFunc(c.world.DecisionsOf(web),
		func(d pando.Decision) bool { return d.Kind != pando.DecidedExec })
}

func run(t *testing.T, c *Control, i pando.InstanceID, words ...string) {
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
	h := &hosts{output: frames.Bytes()}
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
	h := &hosts{}
	c := visitable(t, h)
	job := pando.DefaultService("job")
	run := func(s pando.ServiceKey, i pando.InstanceID, phase pando.Phase) pando.Instance {
		return pando.Instance{Service: s, Host: "h1", ID: i, Phase: phase, Run: &pando.RunPart{Number: 1}}
	}
	c.world.Committed(pando.Txn{Put: []pando.Stored{
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
	c := visitable(t, &hosts{})
	for n := range 45 {
		run(t, c, "", fmt.Sprint("command-", n))
	}
	got := sessionsOf(c)
	if len(got) != visitsKept || !strings.HasPrefix(got[0].Reason, "command-5:") ||
		!strings.HasPrefix(got[visitsKept-1].Reason, "command-44:") {
		t.Errorf("%d are remembered, the first %q", len(got), got[0].Reason)
	}
	long := words([]string{strings.Repeat("ä", 1000)})
	if len(long) > commandBytesMax+6 {
		t.Errorf("a record of %d bytes", len(long))
	}
}

func TestASessionThatCannotBeginIsRefused(t *testing.T) {
	h := &hosts{}
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

// A refused request for a run has its reason.
func TestARunIsRefusedWithItsReason(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		_, err := l.StartRun(t.Context(), web, pando.RunAsk{}, anna)
		if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "run web -- COMMAND") {
			t.Errorf("without a command: %v", err)
		}
		ask := pando.RunAsk{Command: []string{"true"}}
		if _, err = l.StartRun(t.Context(), web, ask, anna); !errors.Is(err, pando.ErrUnsupported) {
			t.Errorf("an older host: %v", err)
		}
		if _, err = l.EndRun(t.Context(), web, 3, anna); !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("no such run: %v", err)
		}
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{
			pando.Host{Name: "h1", Runs: true}}}); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Second)
		for n := 1; n <= pando.RunsMax; n++ {
			if r, err := l.StartRun(t.Context(), web, ask, anna); err != nil || r.Number != n {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		if _, err = l.StartRun(t.Context(), web, ask, anna); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("one too many: %v", err)
		}
		r, err := l.EndRun(t.Context(), web, 2, anna)
		if err != nil || r.State != pando.RunEnded || !strings.Contains(r.Reason, "anna") {
			t.Errorf("%+v: %v", r, err)
		}
		if _, err = l.EndRun(t.Context(), web, 2, anna); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("twice: %v", err)
		}
	})
}

// An attached run for which no host has room says why at once, and ends after a minute.
func TestAnAttachedRunWaitsAMinuteForAHost(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		spec := pando.Spec{Name: "web", Command: []string{"web"},
			Resources: pando.Resources{MemoryBytes: 1 << 50}}.WithDefaults()
		svc := pando.Service{ServiceKey: web, Current: 1, Target: 1, Latest: 1, Phase: pando.ServiceServing}
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{svc,
			pando.Revision{Service: web, Number: 1, State: pando.RevisionCurrent, Spec: spec},
			pando.Host{Name: "h1", Runs: true, Memory: 1 << 30, CPUs: 4}}}); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Second)
		said := make(chan string, 100)
		ctx := pando.TellWaits(t.Context(), func(what string) { said <- what })
		began := time.Now()
		_, err := l.AttachRun(ctx, web, pando.SessionSpec{Command: []string{"true"}}, anna)
		took := time.Since(began)
		if !errors.Is(err, pando.ErrNotReady) || !strings.Contains(err.Error(), "no host has room") ||
			took < partWaitMax || took > partWaitMax+time.Second {
			t.Errorf("after %s: %v", took, err)
		}
		named := false
		for len(said) > 0 {
			named = strings.Contains(<-said, "no host has room") || named
		}
		if !named {
			t.Error("the wait has no reason")
		}
		if r, _ := l.world.Services[web].V.Book.Newest(); r.State != pando.RunFailed {
			t.Errorf("%+v", r)
		}
	})
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
