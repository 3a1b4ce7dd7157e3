package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

// memoryBinary lends memory and starts programs that borrow it. It lies beside pando, or in the PATH.
const memoryBinary = "pando-mem"

// memoryCommand is `pando mem`: far memory is a program of its own, which needs no cluster. It takes this process over,
// so that the program which it starts has the pid, the terminal and the signals that its caller expects.
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
