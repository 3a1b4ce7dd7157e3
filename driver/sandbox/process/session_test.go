package process

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/session"
)

// visited runs a session in a sandbox. It sends frames and returns the output and the exit code.
func visited(
	t *testing.T, b pando.Sandbox, spec pando.SessionSpec, send func(*session.Writer),
) (out, errs string, code int) {
	t.Helper()
	conn, err := b.Session(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if send != nil {
		go send(session.NewWriter(conn))
	}
	for {
		kind, text, err := session.Read(conn)
		switch {
		case err != nil:
			t.Fatalf("the session broke off: %v; it printed %q, %q", err, out, errs)
		case kind == session.Output:
			out += string(text)
		case kind == session.Errors:
			errs += string(text)
		case kind == session.Exit:
			var end session.End
			if err := json.Unmarshal(text, &end); err != nil {
				t.Fatal(err)
			}
			return out, errs, end.Code
		}
	}
}

func shell(script string) pando.SessionSpec {
	return pando.SessionSpec{Command: []string{"sh", "-c", script}}
}

func TestASessionHasStreamsAnExitCodeAndSignals(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sleep", "1000")
	out, errs, code := visited(t, b, shell("cat; echo bad >&2; exit 7"), func(w *session.Writer) {
		_ = errors.Join(w.Send(session.Input, []byte("one\n")), w.Send(session.Input, []byte("two\n")),
			w.Send(session.EOF, nil))
	})
	if out != "one\ntwo\n" || errs != "bad\n" || code != 7 {
		t.Errorf("got %q, %q, %d", out, errs, code)
	}
	_, _, code = visited(t, b, shell("kill -9 $$"), nil)
	if code != 137 {
		t.Errorf("killed: %d", code)
	}
	trap := shell("trap 'echo caught; exit 9' USR1; read x; while :; do sleep 0.1; done")
	out, _, code = visited(t, b, trap, func(w *session.Writer) {
		_ = errors.Join(w.Send(session.Signal, []byte("SIGNONSENSE")),
			w.Send(session.Size, []byte("no size")), w.Send(session.Input, []byte("x\n")))
		for w.Send(session.Signal, []byte("SIGUSR2")) == nil { // ends the shell if it has no trap yet
			if w.Send(session.Signal, []byte("SIGUSR1")) != nil {
				return
			}
		}
	})
	if out != "caught\n" && code != 128+12 && code != 128+10 {
		t.Errorf("signalled: %q, %d", out, code)
	}
	big, _, _ := visited(t, b, shell("head -c 3000000 /dev/zero"), nil)
	if len(big) != 3_000_000 {
		t.Errorf("%d bytes of output", len(big))
	}
}

func TestASessionHasATerminalOfItsOwn(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sleep", "1000")
	spec := shell("tty; stty size; echo $TERM; : > /dev/tty && read x && stty size")
	spec.Terminal, spec.Rows, spec.Columns, spec.Term = true, 33, 99, "vt220"
	out, _, code := visited(t, b, spec, func(w *session.Writer) {
		_ = errors.Join(w.SendJSON(session.Size, session.Window{Rows: 44, Columns: 111}),
			w.Send(session.Input, []byte("\n")))
	})
	// The terminal may show the input before the first command speaks.
	if code != 0 || !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "vt220\r\n") ||
		!strings.HasSuffix(out, "44 111\r\n") {
		t.Errorf("got %q, %d", out, code)
	}
}

// The command ignores its input, which fills, and the caller hangs up.
func TestACommandEndsWithItsCaller(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sleep", "1000")
	alone := func(u pando.Usage) bool { return u.PIDs == 1 }
	awaitUsage(t, b, alone) // the start may not be over
	conn, err := b.Session(t.Context(), shell("trap '' HUP; sleep 1000 & sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	awaitUsage(t, b, func(u pando.Usage) bool { return u.PIDs >= 3 })
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		w := session.NewWriter(conn)
		for w.Send(session.Input, make([]byte, session.BytesMax)) == nil {
			continue
		}
	}()
	time.AfterFunc(100*time.Millisecond, func() { conn.Close() })
	<-filled
	awaitUsage(t, b, alone)
}

func TestASessionEndsWithItsInstance(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sleep", "1000")
	conn, err := b.Session(t.Context(), shell("sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Logf("the connection ends with %v", err)
	}
	if _, err := b.Session(t.Context(), shell("true")); err == nil {
		t.Error("a session begins in a sandbox that is gone")
	}
}

func TestASessionThatCannotBeginNamesTheCause(t *testing.T) {
	d := newDriver(t, 0)
	b := run(t, d, nil, "sleep", "1000")
	for _, c := range []struct {
		command []string
		want    string
	}{
		{[]string{"no-such-program"}, "no program \"no-such-program\""},
		{nil, "nothing runs"}, {[]string{"/etc"}, "is a folder"},
	} {
		_, err := b.Session(t.Context(), pando.SessionSpec{Command: c.command})
		if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.command, err, c.want)
		}
	}
}

// A session of an image sees the image's files, also through a terminal, and none of the host's.
func TestASessionIsInTheImageOfItsInstance(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, withImage, "/bin/sleep", "1000")
	for _, terminal := range []bool{false, true} {
		spec := shell("cat /data/high; ls /var/lib; : > /dev/null && echo device")
		spec.Terminal, spec.Rows, spec.Columns = terminal, 24, 80
		out, errs, _ := visited(t, b, spec, nil)
		if !strings.Contains(out, "high") || !strings.Contains(out, "device") ||
			!strings.Contains(out+errs, "/var/lib") {
			t.Errorf("terminal %v: %q, %q", terminal, out, errs)
		}
	}
}
