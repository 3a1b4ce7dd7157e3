// Package memory holds `pando mem`. Far memory is a separate program, pando-mem, which needs no
// cluster and has its own flags and help.
package memory

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
)

// binary is the program that lends memory and starts borrowers. It is next to pando or in the PATH.
const binary = "pando-mem"

// Command returns `pando mem`. It replaces this process with pando-mem, so that a borrower keeps
// the pid, the terminal and the signals that the caller expects.
func Command() *cobra.Command {
	return &cobra.Command{
		Use: "mem COMMAND", Short: "lend and borrow memory between hosts",
		Long: "Lend memory of this machine, or run an unmodified program that is larger than its\n" +
			"host's memory. `pando mem --help` lists the commands, and `pando mem COMMAND --help`\n" +
			"explains one.",
		Example: "  pando mem serve --size 8GiB --listen 127.0.0.1:7070\n" +
			"  pando mem run --local 256MiB --from 127.0.0.1:7070 -- redis-server",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := cli.FindBeside(binary)
			if err != nil {
				return err
			}
			err = syscall.Exec(path, append([]string{binary}, args...), os.Environ())
			return fmt.Errorf("start %s: %w", path, err)
		},
	}
}
