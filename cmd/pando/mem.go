package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

// memoryBinary is the program that lends memory and starts borrowers. It is next to pando or in the
// PATH.
const memoryBinary = "pando-mem"

// memoryCommand is `pando mem`. Far memory is a separate program, which needs no cluster. The
// command replaces this process with that program, so that the borrower keeps the pid, the terminal
// and the signals that the caller expects.
func memoryCommand() *cobra.Command {
	return &cobra.Command{
		Use: "mem COMMAND", Short: "far memory: lend it, and run programs that are larger than their host",
		Example:            "  pando mem serve --size 8GiB --listen 127.0.0.1:7070\n  pando mem run --local 256MiB --from 127.0.0.1:7070 -- redis-server",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := findBeside(memoryBinary)
			if err != nil {
				return err
			}
			err = syscall.Exec(path, append([]string{memoryBinary}, args...), os.Environ())
			return fmt.Errorf("start %s: %w", path, err)
		},
	}
}
