package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/function"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/driver/network/front"
	"pando.run/pando/driver/network/nat"
	"pando.run/pando/driver/network/ovs"
	"pando.run/pando/driver/sandbox/process"
)

// Down returns `pando down`.
func Down(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	var purges, volumes, now, force bool
	var drain time.Duration
	c := &cobra.Command{
		Use: "down", Short: "stop every instance and the daemons",
		Long: "Drain every instance on this machine, then stop the daemons. Instances get no new\n" +
			"connections, and open connections have the time of --drain to end. Then each instance\n" +
			"stops as its spec describes, and its state is merged. Services, states and logs stay,\n" +
			"and `pando up` brings them back. --now kills instances at once: committed state stays,\n" +
			"and uncommitted state is lost.\n\n" +
			"--purge deletes services, secrets, states, images, logs, systemd units, and the network\n" +
			"functions of this machine with their bills, and names them. Volumes stay in the data\n" +
			"folder, and --volumes deletes them too. The kernel's forwarding settings return to their\n" +
			"values before Pando.\n\n" +
			"The exit code is 7 if instances did not leave in time, or if something had to be killed.\n\n" +
			"On one of several servers, it prints how many servers stay. It refuses to end the\n" +
			"majority, or to purge a server that the others count on, without --force.",
		Example: "  pando down\n  pando down --drain 1m\n  pando down --now --purge",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(p.locate(), completeStore(&p)); err != nil {
				return err
			}
			if volumes && !purges {
				return cli.Usagef("down: --volumes deletes volumes together with --purge only")
			}
			if now {
				drain = -1
			}
			if !force {
				if err := m.mayEnd(c.Context(), p, purges); err != nil {
					return fmt.Errorf("stop the server of host %s: %w", p.Host, err)
				}
			}
			if !purges {
				return m.down(c.Context(), p, drain, nil)
			}
			u, err := planPurge(c.Context(), p, volumes)
			if err != nil {
				return err
			}
			return m.down(c.Context(), p, drain, &u)
		},
	}
	p.folderFlags(c)
	m.unitFlags(c, &p)
	c.Flags().BoolVar(&purges, "purge", false,
		"also delete services, secrets, states, logs, functions and bills")
	c.Flags().BoolVar(&volumes, "volumes", false, "with --purge: also delete the volumes")
	cli.DurationVar(c.Flags(), &drain, "drain", 10*time.Second, "time for open connections to end")
	c.Flags().BoolVar(&now, "now", false, "kill instances at once")
	c.Flags().BoolVar(&force, "force", false, "also end a server that the others need")
	c.MarkFlagsMutuallyExclusive("drain", "now")
	return out.Flag(c)
}

// evacuate drains every instance through the agent, and asks it again while it starts anew. killed
// means that instances are left, which `pando down` then kills. The cause is printed. An interrupt
// ends the command.
func (m machine) evacuate(
	ctx context.Context, p place, drain, again time.Duration,
) (killed bool, err error) {
	own := peer.New(peer.Reach{Clock: clock.Clock{}})
	defer own.Close()
	ctx = cli.Telling(ctx, m.Stderr)
	agent := pando.Host{Name: pando.HostName(p.Host), Endpoint: "unix://" + p.agent()}
	asking, cancel := context.WithTimeout(ctx, again)
	defer cancel()
	for said := false; ; {
		if _, alive := daemon(p, "agent"); !alive {
			return false, nil
		}
		left, err := own.Leave(ctx, agent, drain)
		running, unknown := process.Instances(p.sandboxes())
		idle := running == 0 && unknown == nil
		switch {
		case ctx.Err() != nil:
			return false, fmt.Errorf("stop pando: %w; instances are leaving and the daemons run; "+
				"repeat `pando down`, or add --now", ctx.Err())
		case err == nil && left > 0:
			fmt.Fprintf(m.Stderr,
				"%d instances did not leave in time and are killed: their committed state stays\n", left)
			return true, nil
		case err == nil, idle: // an agent without instances may be silent
			return false, nil
		case !errors.Is(err, pando.ErrUnavailable), pando.Sleep(asking, clock.Clock{}, askStep) != nil:
			fmt.Fprintf(m.Stderr,
				"the instances did not drain (%v) and are killed: their committed state stays\n", err)
			return true, nil
		case !said:
			said = true
			fmt.Fprintf(m.Stderr, "waiting: the agent does not answer (%v): it is asked again for %s\n", err,
				again)
		}
	}
}

// down ends everything on this host. A purge also deletes its files; nil: they stay.
func (m machine) down(ctx context.Context, p place, drain time.Duration, u *purge) error {
	killed := false
	if drain >= 0 {
		var err error
		if killed, err = m.evacuate(ctx, p, drain, askAgain); err != nil {
			return err
		}
	}
	if err := m.endWarden(ctx, p); err != nil {
		return fmt.Errorf("stop pando: %w; nothing was removed; repeat `pando down`", err)
	}
	if err := markDown(p); err != nil {
		return fmt.Errorf("stop pando: %w", err)
	}
	for _, role := range []string{"agent", "server"} {
		forced, err := endDaemon(ctx, m, p, role, asking, u != nil)
		if err != nil {
			return fmt.Errorf("stop pando: %w; nothing was removed; repeat `pando down`", err)
		}
		killed = killed || forced
	}
	if err := clearHost(ctx, m, p, u); err != nil {
		return fmt.Errorf("stop pando: %w", err)
	}
	if u != nil && p.Store.there() {
		fmt.Fprintf(m.Stderr, "the records of the cluster stay in %s: `etcdctl del --prefix %s` deletes "+
			"them\n", p.Store.text(), pando.Root)
	}
	is := struct {
		Host   string `json:"host"`
		Purged bool   `json:"purged"`
		Killed bool   `json:"killed,omitempty"` // something did not end by itself
		Purge  *purge `json:"purge,omitempty"`
	}{p.Host, u != nil, killed, u}
	err := m.Show(is, func(w io.Writer) { fmt.Fprintf(w, "pando is down on %s\n", p.Host) })
	if err == nil && killed {
		return cli.Code(cli.CodeOf(pando.ErrNotReady))
	}
	return err
}

// clearHost removes what the daemons leave on this host. A purge also deletes its files.
func clearHost(ctx context.Context, m machine, p place, u *purge) error {
	var errs []error
	sandboxes, err := openSandboxes(p, nil, nil, slog.New(slog.DiscardHandler))
	if err == nil {
		err = errors.Join(sandboxes.Purge(ctx), sandboxes.Close())
	}
	errs = append(errs, err)
	errs = append(errs, front.Purge(frontPins(p)), ebpf.Purge(p.pins()),
		ovs.PurgeAll(switched(p), p.pins()+"-ovs"), nat.Purge())
	if u != nil {
		if err := u.addStates(p.states()); err != nil {
			fmt.Fprintf(m.Stderr, "the names of the states in %s are unknown (%v)\n", p.states(), err)
		}
		u.print(m.Stderr, p.volumes())
		m.resign(ctx, p)
		if names := p.installed("agent", "server"); len(names) > 0 { // they would begin a new cluster
			errs = append(errs, p.Units.Remove(ctx, names...))
		}
		errs = append(errs, function.RemoveAll(ctx, p.functions()))
		errs = append(errs, ebpf.Restore(p.settingsFile()), u.emptyData(p))
	}
	return errors.Join(append(errs, removeRun(p.Run))...)
}

// resign leaves the cluster that this host joined. If the server does not answer, it prints a
// warning only.
func (m machine) resign(ctx context.Context, p place) {
	joined, err := trust.LoadMembership(p.trust())
	if joined == nil || err != nil {
		return // a cluster of its own, or damaged files, which purge deletes
	}
	if err := resign(ctx, joined); err != nil {
		fmt.Fprintf(m.Stderr,
			"the server at %s still lists this host as a member (%v); `pando hosts rm %s` there ends that\n",
			joined.Server, err, joined.Host)
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
		if e.Name() != function.Folder {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	for _, d := range []string{filepath.Join(dir, function.Folder), dir} {
		switch err := os.Remove(d); {
		case err == nil, errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTEMPTY):
		case errors.Is(err, syscall.EBUSY): // a mount point of the operator; it is empty
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
