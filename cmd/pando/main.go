// Command pando is all of Pando in one binary: the daemons, what they start, and the operator's commands.
//
// It chooses the drivers, joins api to control and agent, and runs. It decides nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// version is set by the build.
var version = "unreleased"

// Env is what a command may touch of the process that runs it.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

func main() {
	os.Exit(run(os.Args[1:], Env{os.Stdin, os.Stdout, os.Stderr, os.Getenv}))
}

// run is one invocation; it returns the exit code.
func run(args []string, env Env) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := rootCommand(env)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	code := codeOf(err)
	if err != nil && !errors.As(err, new(codeError)) {
		fmt.Fprintln(env.Stderr, "pando:", err)
	}
	return code
}

func rootCommand(env Env) *cobra.Command {
	c := &cobra.Command{
		Use: "pando", Short: "the runtime in which applications scale themselves", Version: version,
		Long: "Pando runs services that ask for copies of themselves, steers flows to them inside the kernel and merges their state.\n\n" +
			"Exit codes: 0 done, 1 internal error, 2 usage, 3 invalid input, 4 not found, 5 refused, 6 conflict,\n" +
			"7 not ready by the deadline, 8 pando is not running, 9 the store is full.",
		SilenceErrors: true, SilenceUsage: true,
	}
	c.SetIn(env.Stdin)
	c.SetOut(env.Stdout)
	c.SetErr(env.Stderr)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.AddCommand(operatorCommands(env)...)
	c.AddCommand(roles(env)...)
	c.AddCommand(functionCommand(env))
	return c
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

// codeError ends the process with a code and no words: a child has said them.
type codeError int

func (c codeError) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func codeOf(err error) int {
	var code codeError
	var child *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &child):
		return child.ExitCode()
	case errors.As(err, new(usageError)):
		return 2
	case errors.As(err, new(spec.Problems)):
		return 3
	}
	for n, sentinel := range []error{pando.ErrInvalid, pando.ErrNotFound, pando.ErrRefused, pando.ErrConflict, pando.ErrNotReady, pando.ErrUnavailable, pando.ErrStoreFull} {
		if errors.Is(err, sentinel) {
			return n + 3
		}
	}
	return 1
}
