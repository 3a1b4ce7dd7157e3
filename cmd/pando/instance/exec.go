// Package instance holds the commands that reach into instances: exec, cp, logs, port-forward, run.
package instance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/api/session"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Exec returns `pando exec`.
func Exec(o *console.Console) *cobra.Command {
	var input, terminal bool
	c := &cobra.Command{
		Use: "exec SERVICE[/INSTANCE] -- COMMAND…", Short: "run a command inside an instance",
		Long: "Run a command beside the program of an instance: with its user, its limits, its\n" +
			"view of files and its walls. Without INSTANCE, take the first one that serves. The\n" +
			"exit code is the command's, or 128 and the number of the signal that ended it. Signals\n" +
			"go to the command; the third one hangs up. `pando why` shows the sessions of a service.",
		Example: "  pando exec website -- ls -l\n  pando exec -it website -- sh\n" +
			"  pando exec website/website-7k3fq -- cat /proc/net/tcp",
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			key, instance, err := console.TargetOf(c.Context(), o, args[0])
			if err != nil {
				return err
			}
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return cli.Usagef("exec: the command is missing; want: pando %s", c.Use)
			}
			spec := pando.SessionSpec{Command: command, Terminal: terminal}
			if err := execute(c.Context(), o, key, instance, spec, input); err != nil {
				return o.SuggestService(c.Context(), key, err)
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVarP(&input, "interactive", "i", false, "pass standard input on")
	c.Flags().BoolVarP(&terminal, "tty", "t", false, "give the command a terminal")
	return c
}

// exec runs a command inside an instance.
func execute(
	ctx context.Context, o *console.Console, key pando.ServiceKey, i pando.InstanceID, spec pando.SessionSpec, input bool,
) error {
	return attend(ctx, o, &spec, input, func(ctx context.Context) (io.ReadWriteCloser, error) {
		return o.Client.Exec(ctx, key, i, spec)
	})
}

// attend begins a command and passes its streams, signals and window on until it ends. begin finds
// the terminal in the spec.
func attend(
	ctx context.Context, o *console.Console, spec *pando.SessionSpec, input bool,
	begin func(context.Context) (io.ReadWriteCloser, error),
) error {
	// The command gets every signal until it ends.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, passed...)
	defer signal.Stop(signals)
	screen, err := openScreen(o, spec)
	if err != nil {
		return err
	}
	conn, err := begun(ctx, signals, begin)
	if err != nil {
		return err
	}
	defer conn.Close()
	if screen != nil && input {
		restore, err := raw(screen)
		if err != nil {
			return err
		}
		defer restore()
	}
	to := session.NewWriter(conn)
	if input {
		go func() {
			_, _ = io.Copy(to.Stream(session.Input), o.Out.Stdin)
			_ = to.Send(session.EOF, nil) // the command may have ended
		}()
	} else if err := to.Send(session.EOF, nil); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	go pass(signals, done, to, screen, conn)
	code, err := showOutput(o, conn)
	if err != nil {
		return err
	}
	return cli.Exit(code)
}

// begun begins a session. There is no command yet, so a signal ends the wait.
func begun(
	ctx context.Context, signals <-chan os.Signal,
	begin func(context.Context) (io.ReadWriteCloser, error),
) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case s := <-signals:
				if s == syscall.SIGWINCH {
					continue
				}
				cancel()
			case <-done:
			}
			return
		}
	}()
	conn, err := begin(ctx)
	close(done)
	<-ended
	if err != nil {
		cancel()
		return nil, err
	}
	return sessionOf{conn, cancel}, nil
}

// sessionOf is a session whose context ends with it.
type sessionOf struct {
	io.ReadWriteCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (s sessionOf) Close() error {
	defer s.cancel()
	return s.ReadWriteCloser.Close()
}

// passed are the signals that go to the command. SIGWINCH becomes the size of its terminal.
var passed = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
	syscall.SIGUSR2, syscall.SIGWINCH,
}

// hangUpAfter is the number of signals to end after which the session is given up.
const hangUpAfter = 3

// pass sends signals and sizes to the command.
func pass(
	signals <-chan os.Signal, done <-chan struct{}, to *session.Writer, screen *os.File,
	conn io.Closer,
) {
	for ends := 0; ; {
		var s os.Signal
		select {
		case <-done:
			return
		case s = <-signals:
		}
		var err error
		switch n := s.(syscall.Signal); n {
		case syscall.SIGWINCH:
			if screen != nil {
				err = to.SendJSON(session.Size, windowOf(screen))
			}
		default:
			if n == syscall.SIGINT || n == syscall.SIGTERM {
				ends++
			}
			err = to.Send(session.Signal, []byte(unix.SignalName(n)))
		}
		if err != nil || ends == hangUpAfter {
			conn.Close()
			return
		}
	}
}

// show prints the output of the command and returns its exit code.
func showOutput(o *console.Console, conn io.Reader) (int, error) {
	for {
		kind, b, err := session.Read(conn)
		if err != nil {
			return 0, fmt.Errorf("%w: the session broke off: its instance or a daemon ended, or you "+
				"hung up; `pando ps` shows the instances", pando.ErrUnreachable)
		}
		switch kind {
		case session.Output:
			_, err = entire{o.Out.Stdout}.Write(b)
		case session.Errors:
			_, err = o.Out.Stderr.Write(b)
		case session.Exit:
			var end session.End
			if err := json.Unmarshal(b, &end); err != nil {
				return 0, fmt.Errorf("the end of the session: %w", err)
			}
			return end.Code, nil
		}
		if err != nil {
			return 0, fmt.Errorf("the output is incomplete: %w", err)
		}
	}
}

// screen returns the terminal of the operator for a session with a terminal, and puts its size and
// kind into the spec.
func openScreen(o *console.Console, spec *pando.SessionSpec) (*os.File, error) {
	if !spec.Terminal {
		return nil, nil
	}
	f, ok := o.Out.Stdin.(*os.File)
	if !ok || !cli.IsTerminal(f) {
		return nil, cli.Usagef("-t: standard input is no terminal; leave -t out")
	}
	w := windowOf(f)
	spec.Rows, spec.Columns, spec.Term = w.Rows, w.Columns, o.Out.Getenv("TERM")
	return f, nil
}

func windowOf(f *os.File) session.Window {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return session.Window{}
	}
	return session.Window{Rows: size.Row, Columns: size.Col}
}

// raw lets every key pass to the command. restore undoes it.
func raw(f *os.File) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the settings of the terminal: %w", err)
	}
	t := *before
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR |
		unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &t); err != nil {
		return nil, fmt.Errorf("change the settings of the terminal: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, before) }, nil
}
