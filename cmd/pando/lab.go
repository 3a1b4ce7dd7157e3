package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"pando.run/pando/lab"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func labCommand(o *command) *cobra.Command {
	var dir string
	c := &cobra.Command{Use: "lab", Short: "virtual hosts on this machine, to try and to test", Example: "  pando lab up --hosts 3\n  pando lab exec host1 -- ip addr\n  pando lab down"}
	c.PersistentFlags().StringVar(&dir, "dir", "/var/lib/pando-lab", "where the lab is remembered")
	var hosts int
	upLab := &cobra.Command{
		Use: "up", Short: "make the hosts, a switch between them and a client", Example: "  pando lab up --hosts 3", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find the pando binary: %w", err)
			}
			l, err := lab.Up(c.Context(), lab.Config{Hosts: hosts, Name: "host", Self: self, Dir: dir})
			if err != nil {
				return err
			}
			return o.listLab(l)
		},
	}
	upLab.Flags().IntVar(&hosts, "hosts", 3, "how many")
	opened := func(f func(*cobra.Command, *lab.Lab, []string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			l, err := lab.Open(dir)
			if err != nil {
				return err
			}
			return f(c, l, args)
		}
	}
	c.AddCommand(upLab,
		&cobra.Command{Use: "ls", Short: "list the hosts", Example: "  pando lab ls", Args: cobra.NoArgs,
			RunE: opened(func(_ *cobra.Command, l *lab.Lab, _ []string) error { return o.listLab(l) })},
		&cobra.Command{Use: "down", Short: "end the hosts and all that runs on them", Example: "  pando lab down", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return lab.Sweep(dir) }},
		&cobra.Command{Use: "exec HOST -- COMMAND [ARG…]", Short: "run a command on a host", Example: "  pando lab exec client -- curl http://10.127.0.2/", Args: cobra.MinimumNArgs(2),
			RunE: opened(func(c *cobra.Command, l *lab.Lab, args []string) error {
				cmd, err := l.Exec(c.Context(), args[0], args[1:]...)
				if err != nil {
					return err
				}
				cmd.Stdin, cmd.Stdout, cmd.Stderr = o.env.Stdin, o.env.Stdout, o.env.Stderr
				err = cmd.Run()
				var child *exec.ExitError
				if errors.As(err, &child) && child.Exited() {
					return codeError(child.ExitCode())
				}
				if c.Context().Err() != nil {
					return c.Context().Err()
				}
				return err
			})})
	return c
}

func (o *command) listLab(l *lab.Lab) error {
	return o.show(l.List(), func(w io.Writer) {
		rows := []string{row("HOST", "PID", "IPV4", "IPV6")}
		for _, h := range l.List() {
			rows = append(rows, row(h.Name, h.Pid, h.IPv4, h.IPv6))
		}
		columns(w, rows...)
	})
}
