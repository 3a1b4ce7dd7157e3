package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// Daemons returns `pando daemons`.
func Daemons(out *cli.Output) *cobra.Command {
	c := &cobra.Command{
		Use: "daemons", Short: "restart the daemons of Pando on this machine",
		Long: "The daemons are the server and the agent. `pando up` starts them, and `pando down` ends\n" +
			"them with all instances.",
		Example: "  pando daemons restart",
	}
	c.AddCommand(restart(out))
	return c
}

// restart returns `pando daemons restart`.
func restart(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	c := &cobra.Command{
		Use: "restart", Short: "restart the daemons from this binary, as for an upgrade",
		Long: "Restart the server and the agent from this binary, with their current flags. Instances\n" +
			"and connections continue. Requests of operators and instances wait, or fail for a\n" +
			"moment.",
		Example: "  pando daemons restart", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			before, err := running(p)
			if err != nil {
				return err
			}
			return m.restart(c.Context(), before)
		},
	}
	p.runFlag(c)
	return out.Flag(c)
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
	return p, fmt.Errorf("%w: no daemon runs for %s; start them with `pando up`",
		pando.ErrUnavailable, p.Run)
}

func (m machine) restart(ctx context.Context, p place) error {
	_, guarded := daemon(p, wardenRole)
	if err := m.endWarden(ctx, p); err != nil {
		return err
	}
	err := errors.Join(m.stopDaemon(ctx, p, "agent", asking, false),
		m.stopDaemon(ctx, p, "server", asking, false))
	if err != nil {
		return err
	}
	return m.up(ctx, p, guarded)
}
