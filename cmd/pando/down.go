package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/driver/ebpf"
	"pando.run/pando/driver/nftables"
	"pando.run/pando/driver/peer"
	"pando.run/pando/driver/process"
	"pando.run/pando/driver/trust"
)

func downCommand(o *command) *cobra.Command {
	var p place
	var purge, now bool
	var drain time.Duration
	c := &cobra.Command{
		Use: "down", Short: "stop every instance and the daemons; with --purge forget everything",
		Long: "Takes every instance on this machine out, then stops the daemons. Instances get no new connections; open ones may end for --drain.\n" +
			"Then instances are asked to stop, as their specs say, and what they wrote is merged into the states. Services, states and logs\n" +
			"stay: they return with `pando up`. With --now instances are killed at once: what they have committed stays, what they have\n" +
			"written and not committed is lost.\n\n" +
			"With --purge the machine forgets everything: services, states and logs, the network functions that run on it, and their bills.\n" +
			"The data folder is empty then, and it stays. The kernel's settings of forwarding are as they were before Pando.",
		Example: "  pando down\n  pando down --drain 1m\n  pando down --now --purge",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.complete(); err != nil {
				return err
			}
			if now {
				drain = -1
			}
			return o.down(c.Context(), p, drain, purge)
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&purge, "purge", false, "also delete services, states and logs, and network functions with their bills")
	c.Flags().DurationVar(&drain, "drain", 10*time.Second, "how long open connections may take to end")
	c.Flags().BoolVar(&now, "now", false, "kill instances at once")
	c.MarkFlagsMutuallyExclusive("drain", "now")
	return c
}

// evacuate drains every instance through the agent. If the agent fails, it prints a warning, and
// `pando down` continues. An interrupt ends the command.
func (o *command) evacuate(ctx context.Context, p place, drain time.Duration) error {
	if _, alive := daemon(p, "agent"); !alive {
		return nil
	}
	own := peer.New(peer.Reach{})
	defer own.Close()
	left, err := own.Leave(ctx, pando.Host{Name: pando.HostName(p.Host), Endpoint: "unix://" + p.agent()}, drain)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stop pando: %w; instances leave, and the daemons run: `pando down` again, or with --now", ctx.Err())
	// It reports nothing if the host has no instances.
	case err != nil && process.Instances(p.sandboxes()) > 0:
		fmt.Fprintf(o.env.Stderr, "instances are killed without having left (%v): what they committed stays\n", err)
	case left > 0:
		fmt.Fprintf(o.env.Stderr, "%d instances did not leave in time and are killed: what they committed stays\n", left)
	}
	return nil
}

func (o *command) down(ctx context.Context, p place, drain time.Duration, purge bool) error {
	if drain >= 0 {
		if err := o.evacuate(ctx, p, drain); err != nil {
			return err
		}
	}
	for _, role := range []string{"agent", "server"} {
		if err := o.stopDaemon(ctx, p, role, asking, purge); err != nil {
			return fmt.Errorf("stop pando: %w; nothing was removed: `pando down` again", err)
		}
	}
	var errs []error
	sandboxes, err := openSandboxes(place{Run: p.Run, Data: p.Data, Host: p.Host}, nil, quiet())
	if err == nil {
		err = errors.Join(sandboxes.Purge(ctx), sandboxes.Close())
	}
	errs = append(errs, err)
	errs = append(errs, ebpf.Purge(p.pins()), nftables.Purge())
	if purge {
		o.resign(ctx, p)
		errs = append(errs, o.endFunctions(ctx, p), ebpf.Restore(p.settingsFile()), empty(p.Data))
	}
	errs = append(errs, removeRun(p.Run))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop pando: %w", err)
	}
	is := struct {
		Host   string `json:"host"`
		Purged bool   `json:"purged"`
	}{p.Host, purge}
	return o.show(is, func(w io.Writer) { fmt.Fprintf(w, "pando is down on %s\n", p.Host) })
}

// resign leaves the cluster that this host joined. If the server does not answer, it prints a
// warning only.
func (o *command) resign(ctx context.Context, p place) {
	m, err := trust.LoadMembership(p.trust())
	if m == nil || err != nil {
		return // a cluster of its own, or damaged files, which purge deletes
	}
	if err := resign(ctx, m); err != nil {
		fmt.Fprintf(o.env.Stderr, "the server at %s still has this host as a member (%v): `pando hosts rm %s` there ends that\n", m.Server, err, m.Host)
	}
}

// removeRun removes the files of the daemons from the run folder. It keeps the sockets of network
// functions, which run without the daemons.
func removeRun(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != functionsFolder {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	for _, d := range []string{filepath.Join(dir, functionsFolder), dir} {
		switch err := os.Remove(d); {
		case err == nil, errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTEMPTY):
		case errors.Is(err, syscall.EBUSY): // a mount point of the operator; it is empty
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// empty removes everything in a folder, but not the folder. Another mount namespace may have a
// mount on the folder, and the kernel would detach that mount if the folder were removed.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

// endFunctions ends every network function of this machine with the help of pando-unit.
func (o *command) endFunctions(ctx context.Context, p place) error {
	run := filepath.Join(p.Run, functionsFolder)
	entries, err := os.ReadDir(run)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	unit, err := findBeside(unitBinary)
	if err != nil {
		return fmt.Errorf("network functions are left in %s: %w", run, err)
	}
	args := []string{"rm", "--run-dir", run}
	for _, e := range entries {
		args = append(args, e.Name())
	}
	rm := exec.CommandContext(ctx, unit, args...)
	var said bytes.Buffer
	rm.Stderr = &said
	if err := rm.Run(); err != nil {
		return fmt.Errorf("end the network functions of this machine: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}
