package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
)

func restartCommand(o *command) *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "restart", Short: "start the daemons anew, as a newer pando: no instance and no connection is touched",
		Long: "Ends the server and the agent of this machine and starts them again with the flags that they had, from the program that this\n" +
			"command is. Instances and connections go on meanwhile; requests of operators and of instances wait, or are refused for a moment.",
		Example: "  pando restart", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			before, err := running(p)
			if err != nil {
				return err
			}
			return o.restart(c.Context(), before)
		},
	}
	c.Flags().StringVar(&p.Run, "run-dir", "/run/pando", "sockets of the daemons")
	return c
}

// running returns the place of the running daemons, read from their command lines.
func running(p place) (place, error) {
	for _, role := range []string{"server", "agent"} {
		pid, alive := daemon(p, role)
		if !alive {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return p, fmt.Errorf("read the flags of the %s: %w", role, err)
		}
		flags := &cobra.Command{}
		p.flags(flags)
		words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		if err := flags.ParseFlags(words[2:]); err != nil {
			return p, fmt.Errorf("read the flags of the %s: %w", role, err)
		}
		return p, p.complete()
	}
	return p, fmt.Errorf("%w: no daemon of %s runs: start them with `pando up`", pando.ErrUnavailable, p.Run)
}

func (o *command) restart(ctx context.Context, p place) error {
	if err := errors.Join(o.stopDaemon(ctx, p, "agent", asking, false), o.stopDaemon(ctx, p, "server", asking, false)); err != nil {
		return err
	}
	return o.up(ctx, p)
}
