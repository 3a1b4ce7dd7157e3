package function

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
)

// binary is the program that runs network functions. It is next to pando or in the PATH.
const binary = "pando-unit"

// Folder is the name of the folder of network functions, in the run folder and in the data folder
// (function/unit/src/command/places.rs).
const Folder = "fn"

// unit runs commands of pando-unit.
type unit struct{ cli.Env }

// command returns a command whose flags and help belong to pando-unit.
func (u unit) command(use, short, example string) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	return &cobra.Command{
		Use: use, Short: short, Example: example, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return u.call(append([]string{name}, args...))
		},
	}
}

// call runs pando-unit until it ends, and returns its exit code as an error.
func (u unit) call(args []string) error {
	path, err := cli.FindBeside(binary)
	if err != nil {
		return err
	}
	// Without a context: the terminal sends an interrupt to the child itself, and the child ends in
	// good order.
	child := exec.Command(path, args...)
	child.Stdin, child.Stdout, child.Stderr = u.Stdin, u.Stdout, u.Stderr
	err = runThrough(child)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return cli.Code(exit.ExitCode())
	}
	return err
}

// runThrough runs a program and forwards SIGTERM to it.
func runThrough(child *exec.Cmd) error {
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	defer signal.Stop(terms)
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case s := <-terms:
			_ = child.Process.Signal(s) // the child may have ended already
		case err := <-ended:
			return err
		}
	}
}

// RemoveAll ends every network function of a run folder with the help of pando-unit.
func RemoveAll(ctx context.Context, run string) error {
	entries, err := os.ReadDir(run)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	path, err := cli.FindBeside(binary)
	if err != nil {
		return fmt.Errorf("network functions are left in %s: %w", run, err)
	}
	args := []string{"rm", "--run-dir", run}
	for _, e := range entries {
		args = append(args, e.Name())
	}
	rm := exec.CommandContext(ctx, path, args...)
	var reason bytes.Buffer
	rm.Stderr = &reason
	if err := rm.Run(); err != nil {
		return fmt.Errorf("end the network functions of this machine: %w: %s",
			err, bytes.TrimSpace(reason.Bytes()))
	}
	return nil
}

// runFolder and dataFolder are the folders of units that name no others.
var (
	runFolder  = filepath.Join("/run/pando", Folder)
	dataFolder = filepath.Join("/var/lib/pando", Folder)
)
