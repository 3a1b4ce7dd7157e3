package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// logged holds the flags of `pando logs`.
type logged struct {
	lines    int
	follow   bool
	instance string
	since    string
	match    string
	times    bool
}

// logLines is the default of --lines, and sinceLines that with --since or --grep.
const (
	logLines   = 100
	sinceLines = 10_000
)

// Logs returns `pando logs`.
func Logs(o *console.Console) *cobra.Command {
	var f logged
	var c *cobra.Command
	c = o.OfService(&cobra.Command{
		Use: "logs SERVICE", Short: "print the log of a service",
		Long: "Print the last log lines of a service, prefixed by instance and in the order of their\n" +
			"times. --instance selects one, running or gone. Without a running instance, print the\n" +
			"newest dead one. --follow includes instances that start later. A terminal gets no\n" +
			"control characters; a pipe gets every byte.",
		Example: "  pando logs -f website\n  pando logs website --since 10m --grep 'status=5..' -t\n" +
			"  pando logs website --instance website-7k3fq",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		lines, tail := c.Flags().Changed("lines"), c.Flags().Changed("tail")
		if lines && tail {
			return cli.Usagef("--lines and --tail are the same: write one of them")
		}
		q, err := f.query(time.Now(), lines || tail)
		if err != nil {
			return err
		}
		return copyLogs(ctx, o, key, f, q)
	})
	c.Flags().IntVarP(&f.lines, "lines", "n", logLines, "start this many lines before the end")
	c.Flags().IntVar(&f.lines, "tail", logLines, "the same as --lines")
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "print new lines as they arrive")
	c.Flags().StringVar(&f.instance, "instance", "", "print the log of this instance")
	c.Flags().StringVar(&f.since, "since", "", "lines from this time on: 10m, or 2006-01-02T15:04")
	c.Flags().StringVar(&f.match, "grep", "", "lines that match this regular expression")
	c.Flags().BoolVarP(&f.times, "times", "t", false, "begin each line with its time")
	return c
}

// query returns the query that the flags describe. Without --lines, a search has more of them.
func (f logged) query(now time.Time, given bool) (q pando.LogQuery, err error) {
	q = pando.LogQuery{Lines: f.lines, Follow: f.follow, Match: f.match}
	if _, err := regexp.Compile(f.match); err != nil {
		return q, cli.Usagef("--grep: %v", err)
	}
	if f.lines < 0 || f.lines > pando.LogLinesMax {
		return q, cli.Usagef("--lines: want 0 to %d, got %d", pando.LogLinesMax, f.lines)
	}
	if f.since != "" {
		if q.Since, err = console.ParseTime(f.since, now); err != nil {
			return q, err
		}
	}
	if !given && (f.since != "" || f.match != "") {
		q.Lines = sinceLines
	}
	return q, nil
}

// copyLogs copies the logs of a service to standard output. It replaces control characters if the
// output is a terminal.
func copyLogs(
	ctx context.Context, o *console.Console, key pando.ServiceKey, f logged, q pando.LogQuery,
) error {
	searches := f.since != "" || f.match != ""
	// A stream that begins with nothing looks as if it hangs.
	if f.instance == "" && q.Follow && q.Lines > 0 && !searches {
		first := pando.LogQuery{Lines: 1}
		if n, err := copyOnce(ctx, o, io.Discard, key, f, first); err == nil && n == 0 {
			fmt.Fprintf(o.Out.Stderr, "%s has printed nothing yet\n", key)
		}
	}
	var out io.Writer = o.Out.Stdout
	if cli.IsTerminal(out) {
		out = &cli.Harmless{To: out}
	}
	n, err := copyOnce(ctx, o, out, key, f, q)
	if n == 0 && err == nil && !q.Follow && q.Lines > 0 {
		about := key.String()
		if f.instance != "" {
			about = f.instance
		}
		if searches {
			fmt.Fprintf(o.Out.Stderr, "no line of %s is as asked for\n", about)
		} else {
			fmt.Fprintf(o.Out.Stderr, "%s has printed nothing yet\n", about)
		}
	}
	return err
}

func copyOnce(
	ctx context.Context, o *console.Console, to io.Writer, key pando.ServiceKey, f logged, q pando.LogQuery,
) (int64, error) {
	log, err := o.Client.Logs(ctx, key, pando.InstanceID(f.instance), q, f.times)
	if f.instance != "" && errors.Is(err, pando.ErrNotFound) {
		return 0, fmt.Errorf("instance %s: %w, and its log is gone; "+
			"`pando why %s` names earlier instances", f.instance, pando.ErrNotFound, key)
	}
	if err != nil {
		return 0, err
	}
	defer log.Close()
	n, err := io.Copy(entire{to}, log)
	return n, console.WithoutEnd(ctx, err)
}

// entire names a failed write of a stream, so that it is no failure of the server.
type entire struct{ to io.Writer }

// Write implements io.Writer.
func (w entire) Write(text []byte) (int, error) {
	n, err := w.to.Write(text)
	if err != nil {
		err = fmt.Errorf("the output is incomplete: %w", err)
	}
	return n, err
}
