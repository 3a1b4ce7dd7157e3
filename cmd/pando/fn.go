package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"pando.run/pando"
)

// unitBinary runs network functions, simulateBinary plays captures in virtual time. They lie beside pando, or in the PATH.
const (
	unitBinary     = "pando-unit"
	simulateBinary = "pando-simulate"
)

// functionCommand is `pando fn`: all of it is done by the unit's own program, which needs no cluster, but for
// `pando fn simulate`.
func functionCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use: "fn COMMAND", Short: "network functions: write, build, test and run them", Example: "  pando fn --help",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			binary := unitBinary
			if len(args) > 0 && args[0] == "simulate" {
				binary, args = simulateBinary, args[1:]
			}
			path, err := findBeside(binary)
			if err != nil {
				return err
			}
			// No context: an interrupt reaches the child itself, which ends in its own order.
			child := exec.Command(path, args...)
			child.Stdin, child.Stdout, child.Stderr = env.Stdin, env.Stdout, env.Stderr
			err = child.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Exited() {
				return codeError(exit.ExitCode())
			}
			return err
		},
	}
}

// findBeside finds a program that is built with pando but not in Go: beside pando, or in the PATH.
func findBeside(name string) (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s lies neither beside pando nor in the PATH: `make build` makes it when cargo is there", pando.ErrNotFound, name)
	}
	return path, nil
}
