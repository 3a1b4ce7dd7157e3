package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando"
)

// unitBinary is the program that runs network functions. It is next to pando or in the PATH.
const unitBinary = "pando-unit"

// functionCommand is `pando fn`. It runs pando-unit, which needs no cluster.
func functionCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use: "fn COMMAND", Short: "network functions: write, build, test and run them",
		Long: "Network functions: write, build, test and run them on this machine. `pando fn --help` lists the commands, `pando fn COMMAND --help`\nexplains one.",
		Example: "  pando fn new --lang go hundred\n  pando fn build hundred\n  pando fn generate in.pcap\n  pando fn test hundred/hundred.wasm --pcap in.pcap -o json\n" +
			"  pando fn run hundred/hundred.wasm --iface eth1 --out eth2 -d\n  pando fn top\n  pando fn logs -f hundred\n  pando fn bill\n  pando fn rm hundred",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := findBeside(unitBinary)
			if err != nil {
				return err
			}
			if len(args) > 0 && args[0] == "run" && slices.ContainsFunc(args, func(a string) bool { return a == "--units" || strings.HasPrefix(a, "--units=") }) {
				return runGroup(c.Context(), env, path, args[1:])
			}
			// Without a context: the terminal sends an interrupt to the child itself, and the child ends in
			// good order.
			child := exec.Command(path, args...)
			child.Stdin, child.Stdout, child.Stderr = env.Stdin, env.Stdout, env.Stderr
			err = runThrough(child)
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Exited() {
				return codeError(exit.ExitCode())
			}
			return err
		},
	}
}

// runThrough runs a program and forwards SIGTERM to it.
func runThrough(child *exec.Cmd) error {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	defer signal.Stop(told)
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case s := <-told:
			_ = child.Process.Signal(s) // the child may have ended already
		case err := <-ended:
			return err
		}
	}
}

// findBeside finds a program that is built with pando in another language. It looks next to pando,
// then in the PATH.
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
