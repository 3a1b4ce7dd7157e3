package instance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api/session"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestTheOutputOfASessionGoesToItsStreams(t *testing.T) {
	var wire, out, errs bytes.Buffer
	o := console.Open(&cli.Output{Env: cli.Env{Stdout: &out, Stderr: &errs,
		Getenv: func(string) string { return "" }}})
	w := session.NewWriter(&wire)
	if err := errors.Join(w.Send(session.Output, []byte("o\x1b[1m")),
		w.Send(session.Errors, []byte("e")),
		w.SendJSON(session.Exit, session.End{Code: 137})); err != nil {
		t.Fatal(err)
	}
	whole := wire.String()
	if code, err := showOutput(o, strings.NewReader(whole)); code != 137 || err != nil ||
		out.String() != "o\x1b[1m" || errs.String() != "e" {
		t.Errorf("%d, %v, %q, %q", code, err, out.String(), errs.String())
	}
	_, err := showOutput(o, strings.NewReader(whole[:len(whole)-3]))
	if cli.CodeOf(err) != 13 || !strings.Contains(err.Error(), "the session broke off") {
		t.Errorf("a torn end: %v", err)
	}
	wire.Reset()
	if err := w.Send(session.Exit, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := showOutput(o, &wire); err == nil {
		t.Error("an end that is no JSON is no error")
	}
}

// closer counts how often it is closed.
type closer int

func (c *closer) Close() error {
	*c++
	return nil
}

func TestSignalsAreTheCommandsUntilTheThird(t *testing.T) {
	var wire bytes.Buffer
	var closed closer
	signals := make(chan os.Signal, 8)
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGWINCH, syscall.SIGINT,
		syscall.SIGINT, syscall.SIGTERM} {
		signals <- s
	}
	pass(signals, make(chan struct{}), session.NewWriter(&wire), nil, &closed)
	var got []string
	for wire.Len() > 0 {
		kind, b, err := session.Read(&wire)
		if err != nil || kind != session.Signal {
			t.Fatal(kind, err)
		}
		got = append(got, string(b))
	}
	if strings.Join(got, " ") != "SIGUSR1 SIGINT SIGINT SIGTERM" || closed != 1 {
		t.Errorf("sent %v, closed %d times", got, closed)
	}
	done := make(chan struct{})
	close(done)
	pass(make(chan os.Signal), done, session.NewWriter(&wire), nil, &closed)
	if closed != 1 {
		t.Error("a session that is over is closed by a signal")
	}
}

func TestATerminalIsRawForASession(t *testing.T) {
	env, _ := consoletest.Terminal(t, 91, map[string]string{"TERM": "vt220"})
	inner := env.Stdout.(*os.File)
	env.Stdin = inner
	o := console.Open(&cli.Output{Env: env})
	spec := pando.SessionSpec{Terminal: true}
	f, err := openScreen(o, &spec)
	if err != nil || f != inner || spec.Columns != 91 || spec.Rows != 24 || spec.Term != "vt220" {
		t.Fatalf("%+v, %v", spec, err)
	}
	restore, err := raw(f)
	if err != nil {
		t.Fatal(err)
	}
	restore()
	o.Out.Stdin = strings.NewReader("")
	if _, err := openScreen(o, &spec); cli.CodeOf(err) != 2 {
		t.Errorf("a pipe is a terminal: %v", err)
	}
	if f, err := openScreen(o, &pando.SessionSpec{}); f != nil || err != nil {
		t.Errorf("without a terminal: %v, %v", f, err)
	}
}

// A signal ends the wait for a session: there is no command yet that could get it.
func TestASignalEndsTheWaitForASession(t *testing.T) {
	signals := make(chan os.Signal, 8)
	signals <- syscall.SIGWINCH
	signals <- syscall.SIGINT
	_, err := begun(t.Context(), signals, func(ctx context.Context) (io.ReadWriteCloser, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ended with %v", err)
	}
	ours, theirs := net.Pipe()
	defer theirs.Close()
	conn, err := begun(t.Context(), signals, func(context.Context) (io.ReadWriteCloser, error) {
		return ours, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	signals <- syscall.SIGINT
	if conn.Close(); len(signals) != 1 {
		t.Error("the begin of a session takes the signals of its command")
	}
}
