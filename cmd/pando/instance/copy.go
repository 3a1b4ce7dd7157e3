package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api/session"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/instance/tree"
)

// Copy returns `pando cp`.
func Copy(o *console.Console) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "cp SERVICE[/INSTANCE]:PATH LOCAL | LOCAL SERVICE[/INSTANCE]:PATH",
		Short: "copy files from or to an instance",
		Long: "Copy a file or a folder between this machine and an instance on any host, with the\n" +
			"rights of its program, by the instance's own `tar`. As with cp, an existing folder\n" +
			"takes the copy inside. A file that is there stays, unless you add --force. A PATH\n" +
			"without / at its start is in the program's folder.\n" +
			"No copy leaves its folder: links that point out of it, devices and pipes are named\n" +
			"and left out.",
		Example: "  pando cp website:/var/log/site.log .\n  pando cp ./pages website:/srv",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			from, fromThere := cutRemote(args[0])
			to, toThere := cutRemote(args[1])
			if fromThere == toThere {
				return cli.Usagef("cp: want one SERVICE:PATH and one local path; write ./%s for a local file "+
					"with a colon", args[0])
			}
			at, local := from, args[1]
			if toThere {
				at, local = to, args[0]
			}
			key, instance, err := console.TargetOf(c.Context(), o, at.service)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			r := copying{o, key, instance, force}
			if toThere {
				err = r.put(ctx, local, at.path)
			} else {
				err = r.get(ctx, at.path, local)
			}
			if err != nil {
				return o.SuggestService(c.Context(), key, err)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&force, "force", false, "write over files that are there")
	return c
}

// place is SERVICE[/INSTANCE]:PATH.
type place struct{ service, path string }

// cutRemote reads a place in an instance. An argument that begins with / or . is a local path.
func cutRemote(arg string) (place, bool) {
	service, file, ok := strings.Cut(arg, ":")
	if !ok || service == "" || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") {
		return place{}, false
	}
	if file == "" {
		file = "."
	}
	return place{service, file}, true
}

// copying runs commands in an instance.
type copying struct {
	o        *console.Console
	key      pando.ServiceKey
	instance pando.InstanceID
	force    bool
}

// run runs a command with the streams of a copy, and returns its exit code.
func (r copying) run(
	ctx context.Context, in io.Reader, out io.Writer, command ...string,
) (int, error) {
	conn, err := r.o.Client.Exec(ctx, r.key, r.instance, pando.SessionSpec{Command: command})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	sent := make(chan error, 1)
	to := session.NewWriter(conn)
	go func() {
		var err error
		if in != nil {
			_, err = io.Copy(to.Stream(session.Input), in)
		}
		sent <- errors.Join(err, to.Send(session.EOF, nil))
	}()
	for {
		kind, b, err := session.Read(conn)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("the copy is incomplete: %w", ctx.Err())
		}
		if err != nil {
			return 0, fmt.Errorf("%w: the copy broke off: the instance or a daemon ended; `pando ps` "+
				"shows the instances", pando.ErrUnreachable)
		}
		switch kind {
		case session.Output:
			_, err = out.Write(b)
		case session.Errors:
			_, err = r.o.Out.Stderr.Write(b)
		case session.Exit:
			var end session.End
			if err := json.Unmarshal(b, &end); err != nil {
				return 0, fmt.Errorf("the end of the copy: %w", err)
			}
			return end.Code, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// notFound is the exit code of a command without a program.
const notFound = 127

// ended returns the error of a tar that ended with a code.
func (r copying) ended(code int, step string) error {
	switch code {
	case 0:
		return nil
	case notFound:
		return fmt.Errorf("%w: the instance of %s has no `tar`: put one into its image",
			pando.ErrUnsupported, r.key)
	}
	return fmt.Errorf("%w: %s: tar ended with code %d, for the reason above", pando.ErrRefused, step,
		code)
}

// get copies a path of the instance to this machine.
func (r copying) get(ctx context.Context, from, to string) error {
	dir, base := split(from)
	if at := tree.Place(base, to); base != "." && !r.force {
		if _, err := os.Lstat(at); err == nil {
			return tree.Exists(at)
		}
	}
	in, out := io.Pipe()
	type result struct {
		left []string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		left, err := tree.Read(in, base, to, r.force)
		in.CloseWithError(err) // the rest of the stream has no reader
		done <- result{left, err}
	}()
	code, err := r.run(ctx, nil, out, "tar", "-C", dir, "-c", "-f", "-", "--", base)
	if err == nil {
		err = r.ended(code, "read "+from)
	}
	out.CloseWithError(err)
	got := <-done
	r.leftOut(got.left)
	if got.err != nil && (err == nil || !errors.Is(got.err, err)) {
		return errors.Join(err, got.err)
	}
	return err
}

// put copies a path of this machine into the instance.
func (r copying) put(ctx context.Context, from, to string) error {
	if _, err := os.Lstat(from); err != nil {
		return cli.OfFile("read the copy's source", from, "name a file or a folder of this machine",
			fmt.Errorf("read the copy's source: %w", err))
	}
	dir, base := split(to)
	// A folder that is there takes the copy inside.
	code, err := r.run(ctx, nil, io.Discard, "test", "-d", dashless(to))
	if err != nil {
		return err
	}
	if code == 0 {
		dir, base = dashless(to), tree.Base(from)
	}
	if !r.force {
		at := path.Join(dir, base)
		code, err = r.run(ctx, nil, io.Discard, "test", "-e", dashless(at))
		if err == nil && code == 0 {
			err = tree.Exists(string(r.key.Name) + ":" + at)
		}
		if err != nil {
			return err
		}
	}
	in, out := io.Pipe()
	var left []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		left, err = tree.Write(out, from, base)
		out.CloseWithError(err)
	}()
	code, err = r.run(ctx, in, r.o.Out.Stderr, "tar", "-C", dir, "-x", "-o", "-f", "-")
	in.Close()
	<-done
	r.leftOut(left)
	if err != nil {
		return err
	}
	return r.ended(code, "write "+to)
}

func (r copying) leftOut(names []string) {
	for _, n := range names {
		fmt.Fprintln(r.o.Out.Stderr, "pando cp: left out:", n)
	}
}

// split returns the folder and the last element of a path in an instance.
func split(p string) (dir, base string) {
	p = path.Clean(p)
	if p == "/" || p == "." || p == ".." || strings.HasSuffix(p, "/..") {
		return dashless(p), "."
	}
	return dashless(path.Dir(p)), path.Base(p)
}

// dashless returns a path that no program takes for an option.
func dashless(p string) string {
	if path.IsAbs(p) {
		return p
	}
	return "./" + p
}
