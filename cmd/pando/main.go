// Command pando is all of Pando in one binary. This file lists the commands; each package below it
// holds one kind of them.
//
//	operator   changes and reads a cluster by its API
//	daemon     runs on each host: the server, the agent, and the commands that start them
//	function   network functions on this machine, without a cluster
//	memory     far memory, without a cluster
//	cli        shared by all commands: streams, exit codes, the format of results
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/daemon"
	"pando.run/pando/cmd/pando/function"
	"pando.run/pando/cmd/pando/host"
	"pando.run/pando/cmd/pando/image"
	"pando.run/pando/cmd/pando/instance"
	"pando.run/pando/cmd/pando/labs"
	"pando.run/pando/cmd/pando/memory"
	"pando.run/pando/cmd/pando/service"
	"pando.run/pando/cmd/pando/specfile"
	"pando.run/pando/cmd/pando/tenant"
	"pando.run/pando/driver/wall"
	"pando.run/pando/lab"
)

func main() {
	env := cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
	if skew, err := time.ParseDuration(os.Getenv(lab.SkewVariable)); err == nil {
		wall.Shift(skew) // a virtual host whose clock is off
	}
	os.Exit(run(os.Args[1:], env))
}

// run executes one command line and returns the exit code.
func run(args []string, env cli.Env) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := rootCommand(env)
	c.SetArgs(args)
	help := &helpOutput{to: env.Stdout}
	c.SetOut(help)
	err := c.ExecuteContext(ctx)
	if err == nil && help.err != nil {
		err = fmt.Errorf("the output is incomplete: %w", help.err)
	}
	if ended := new(exec.ExitError); ctx.Err() != nil && errors.As(err, &ended) && !ended.Exited() {
		return cli.Interrupted // the child received the same signal
	}
	// An interrupt needs no message.
	if err != nil && err != context.Canceled && !errors.As(err, new(cli.Code)) {
		fmt.Fprintln(env.Stderr, "pando:", cli.CleanLines(err.Error()))
	}
	return cli.CodeOf(err)
}

// helpOutput is the output of helps. It keeps the first error, which the library drops.
type helpOutput struct {
	to  io.Writer
	err error
}

// Write implements io.Writer.
func (h *helpOutput) Write(text []byte) (int, error) {
	n, err := h.to.Write(text)
	h.err = cmp.Or(h.err, err)
	return n, err
}

// rootCommand returns pando with all its commands.
func rootCommand(env cli.Env) *cobra.Command {
	c := &cobra.Command{
		Use: "pando", Short: "the runtime in which applications scale themselves", Version: cli.Version,
		Long: "Pando runs services that ask for copies of themselves, steers flows to them inside the\n" +
			"kernel and merges their state.\n\n" + cli.Meanings() + "\n" +
			"PANDO_API names another socket than /run/pando/api.sock. With PANDO_TOKEN, a token of a\n" +
			"tenant, it is the server's https://ADDRESS:7401. PANDO_OPERATOR is your name for the\n" +
			"record, else SUDO_USER or USER. NO_COLOR turns colours off.",
		Example:       "  pando up\n  pando deploy examples/hello/pando.yaml --wait\n  pando ps",
		SilenceErrors: true, SilenceUsage: true,
	}
	c.SetIn(env.Stdin)
	c.SetErr(env.Stderr)
	out := &cli.Output{Env: env}
	o := console.Open(out)
	section(c, "Services",
		service.Deploy(o), service.Diff(o), service.History(o), service.Rollback(o),
		service.Rollout(o), service.Recover(o), service.Scale(o), service.Restart(o),
		service.Rm(o), service.Spec(o),
		specfile.Convert(o), image.Image(o), service.Volume(o), tenant.Secret(o),
		service.Snapshot(o), service.Migrate(o),
		tenant.Tenant(o), tenant.Audit(o), tenant.Bill(o),
		service.Ps(o), service.Status(o), service.Why(o), instance.Logs(o),
		service.Stats(o), service.Top(o), instance.Exec(o), instance.Copy(o),
		instance.PortForward(o), instance.Run(o), instance.Runs(o), service.Watch(o), service.State(o))
	section(c, "Machines",
		daemon.Up(out), daemon.Daemons(out), daemon.Down(out), daemon.Token(out), daemon.Servers(out),
		daemon.Backup(out), service.RestoreFrom(o, daemon.Restore(out)),
		daemon.Install(out), daemon.Uninstall(out),
		daemon.Server(), daemon.Agent(),
		host.Hosts(o), host.Rebalance(o), host.Doctor(o), labs.Lab(o))
	section(c, "Functions and memory, without a cluster", function.Command(env), memory.Command())
	c.AddCommand(host.Version(o), daemon.Shim(), daemon.Unpack(), daemon.Warden(), labs.LabInit())
	explain(c)
	return c
}

// section adds commands to a section of the help.
func section(c *cobra.Command, title string, commands ...*cobra.Command) {
	id := strings.ToLower(title)
	c.AddGroup(&cobra.Group{ID: id, Title: title + ":"})
	for _, sub := range commands {
		sub.GroupID = id
	}
	c.AddCommand(commands...)
}
