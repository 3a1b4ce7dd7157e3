package operator

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// Logs returns `pando logs`.
func Logs(o *Console) *cobra.Command {
	var lines int
	var follow bool
	var instance string
	c := o.of(&cobra.Command{
		Use: "logs SERVICE", Short: "print the log of a service",
		Long: "Print the last log lines of a service, prefixed by instance. --instance selects one,\n" +
			"running or gone. Without a running instance, print the newest dead one. A terminal\n" +
			"gets no control characters; a pipe gets every byte.",
		Example: "  pando logs -f website\n  pando logs website --instance website-7k3fq",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		return o.copyLogs(ctx, key, pando.InstanceID(instance), lines, follow)
	})
	c.Flags().IntVar(&lines, "lines", 100, "start this many lines before the end")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print new lines as they arrive")
	c.Flags().StringVar(&instance, "instance", "", "print the log of this instance")
	return c
}

// copyLogs copies the logs of a service to standard output. It replaces control characters if the
// output is a terminal.
func (o *Console) copyLogs(
	ctx context.Context, key pando.ServiceKey, instance pando.InstanceID, lines int, follow bool,
) error {
	// A stream that begins with nothing looks as if it hangs.
	if instance == "" && follow && lines > 0 {
		if n, err := o.copyOnce(ctx, io.Discard, key, "", 1, false); err == nil && n == 0 {
			fmt.Fprintf(o.Stderr, "%s has printed nothing yet\n", key)
		}
	}
	var out io.Writer = o.Stdout
	if cli.IsTerminal(out) {
		out = &cli.Harmless{To: out}
	}
	n, err := o.copyOnce(ctx, out, key, instance, lines, follow)
	if n == 0 && err == nil && !follow && lines > 0 {
		about := key.String()
		if instance != "" {
			about = string(instance)
		}
		fmt.Fprintf(o.Stderr, "%s has printed nothing yet\n", about)
	}
	return err
}

func (o *Console) copyOnce(
	ctx context.Context, to io.Writer,
	key pando.ServiceKey, instance pando.InstanceID, lines int, follow bool,
) (int64, error) {
	log, err := o.client.Logs(ctx, key, instance, lines, follow)
	if instance != "" && errors.Is(err, pando.ErrNotFound) {
		return 0, fmt.Errorf("instance %s: %w, and its log is gone; "+
			"`pando why %s` names earlier instances", instance, pando.ErrNotFound, key)
	}
	if err != nil {
		return 0, err
	}
	defer log.Close()
	n, err := io.Copy(to, log)
	return n, ended(ctx, err)
}
