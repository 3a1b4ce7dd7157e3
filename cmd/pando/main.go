// Command pando is all of Pando in one binary: the daemons, the programs that the daemons start,
// and the operator's commands.
//
// It chooses the drivers and joins api to control and agent. It makes no other decision.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/spec/nearest"
)

// version is set by the build.
var version = "unreleased"

// Env holds the parts of the process that a command may use.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

func main() {
	os.Exit(run(os.Args[1:], Env{os.Stdin, os.Stdout, os.Stderr, os.Getenv}))
}

// run executes one command line and returns the exit code.
func run(args []string, env Env) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := rootCommand(env)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	code := codeOf(err)
	if ended := new(exec.ExitError); ctx.Err() != nil && errors.As(err, &ended) && !ended.Exited() {
		return interrupted // the child received the same signal
	}
	// An interrupt needs no message.
	if err != nil && err != context.Canceled && !errors.As(err, new(codeError)) {
		fmt.Fprintln(env.Stderr, "pando:", cleanLines(err.Error()))
	}
	return code
}

func rootCommand(env Env) *cobra.Command {
	c := &cobra.Command{
		Use: "pando", Short: "the runtime in which applications scale themselves", Version: version,
		Long: "Pando runs services that ask for copies of themselves, steers flows to them inside the kernel and merges their state.\n\n" +
			"Exit codes: 0 done, 1 internal error, 2 usage" + meanings() + ".\nPANDO_API names another socket than /run/pando/api.sock. NO_COLOR leaves out colour on a terminal.",
		Example:       "  pando up\n  pando deploy examples/hello/pando.yaml --wait\n  pando ps",
		SilenceErrors: true, SilenceUsage: true,
	}
	c.SetIn(env.Stdin)
	c.SetOut(env.Stdout)
	c.SetErr(env.Stderr)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%s; `%s --help` lists what it takes", flagError(err), c.CommandPath())}
	})
	o := newCommand(env)
	c.PersistentFlags().VarP((*format)(&o.json), "output", "o", "how to print: text for people, json for programs")
	c.AddCommand(o.operators()...)
	c.AddCommand(roles(o)...)
	c.AddCommand(functionCommand(env), memoryCommand())
	group(c)
	strict(c)
	return c
}

// group assigns each command to a section of the help.
func group(c *cobra.Command) {
	of := map[string]string{"fn": "alone", "mem": "alone"}
	for _, name := range []string{"up", "restart", "down", "doctor", "hosts", "token", "lab", "server", "agent"} {
		of[name] = "machine"
	}
	for _, name := range []string{"deploy", "ps", "status", "why", "logs", "watch", "scale", "rm", "state", "spec"} {
		of[name] = "services"
	}
	c.AddGroup(&cobra.Group{ID: "services", Title: "Services:"}, &cobra.Group{ID: "machine", Title: "Machines:"},
		&cobra.Group{ID: "alone", Title: "What needs no running pando:"})
	for _, sub := range c.Commands() {
		sub.GroupID = of[sub.Name()]
	}
}

// strict turns every wrong command line into a usage error that explains the correct form.
func strict(c *cobra.Command) {
	for _, sub := range c.Commands() {
		strict(sub)
	}
	_, does := c.Annotations[runs]
	switch check := c.Args; {
	case c.HasSubCommands() && !does:
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return usageError{fmt.Errorf("%s has no command %q%s; `%s --help` lists those it has", c.CommandPath(), args[0], near(c, args[0]), c.CommandPath())}
		}
	case check != nil:
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageError{fmt.Errorf("%s given; want: %s", given(args), c.UseLine())}
			}
			return nil
		}
	}
}

// given describes the number of arguments in words.
func given(args []string) string {
	if len(args) == 0 {
		return "no argument was"
	}
	if len(args) == 1 {
		return "one argument was"
	}
	return fmt.Sprintf("%d arguments were", len(args))
}

var (
	badValue  = regexp.MustCompile(`^invalid argument "(.*)" for "(?:-., )?(--[a-z0-9-]+)" flag: (.*)$`)
	badLetter = regexp.MustCompile(`^unknown shorthand flag: '(.)' in (.*)$`)
)

// flagError explains in plain words why a flag is wrong.
func flagError(err error) string {
	if m := badLetter.FindStringSubmatch(err.Error()); m != nil {
		if m[1] >= "0" && m[1] <= "9" {
			return fmt.Sprintf("%s is below 0, or a flag that is not known", m[2])
		}
		return fmt.Sprintf("there is no flag -%s", m[1])
	}
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error()
	}
	switch cause := m[3]; {
	case strings.HasPrefix(cause, "time: "):
		return fmt.Sprintf("%s: want a duration such as 500ms, 10s, 5m or 24h, got %q", m[2], m[1])
	case strings.HasPrefix(cause, "strconv.ParseBool"):
		return fmt.Sprintf("%s: want true or false, got %q", m[2], m[1])
	case strings.HasPrefix(cause, "strconv."):
		return fmt.Sprintf("%s: want a number, got %q", m[2], m[1])
	default:
		return fmt.Sprintf("%s: %s", m[2], cause)
	}
}

// runs marks a command that does something by itself and also has subcommands.
const runs = "runs"

// near suggests a subcommand of c for an unknown word.
func near(c *cobra.Command, word string) string {
	var known []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			known = append(known, sub.Name())
		}
	}
	if best := nearest.Word(word, known); best != "" {
		return fmt.Sprintf(": did you mean %q?", best)
	}
	return ""
}

// usageError is an error of the command line.
type usageError struct{ error }

// codeError ends the process with an exit code and without a message, because a child printed it.
type codeError int

func (c codeError) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func codeOf(err error) int {
	var code codeError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, new(usageError)):
		return 2
	}
	for _, k := range codes {
		for _, sentinel := range k.errs {
			if errors.Is(err, sentinel) {
				return k.code
			}
		}
	}
	return 1
}

// interrupted is the exit code of a command that a signal ended.
const interrupted = 130

// codes maps errors to exit codes, which scripts can test.
var codes = []struct {
	code int
	name string
	errs []error
}{
	{3, "invalid input", []error{pando.ErrInvalid, pando.ErrTooLarge}},
	{4, "not found", []error{pando.ErrNotFound, fs.ErrNotExist}},
	{5, "refused", []error{pando.ErrRefused, pando.ErrNoRoom}},
	{6, "conflict", []error{pando.ErrConflict, pando.ErrExists, pando.ErrFenced, pando.ErrCompacted, pando.ErrLost}},
	{7, "not ready by the deadline", []error{pando.ErrNotReady, context.DeadlineExceeded}},
	{8, "pando is not running", []error{pando.ErrUnavailable}},
	{9, "the store is full", []error{pando.ErrStoreFull}},
	{10, "not allowed", []error{pando.ErrForbidden, fs.ErrPermission}},
	{11, "not supported here", []error{pando.ErrUnsupported}},
	{interrupted, "interrupted", []error{context.Canceled}},
}

func meanings() (s string) {
	for n, k := range codes {
		sep := ", "
		if n == 2 {
			sep = ",\n"
		}
		s += fmt.Sprintf("%s%d %s", sep, k.code, k.name)
	}
	return s
}
