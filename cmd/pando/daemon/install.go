package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/cluster/systemd"
)

// units are the names of the units of the daemons.
var units = map[string]string{"server": "pando-server", "agent": "pando-agent"}

// Install returns `pando install`.
func Install(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	c := &cobra.Command{
		Use: "install", Short: "let systemd start the daemons, at every boot",
		Long: "Write a systemd unit for each daemon of this host and enable it. `pando up` starts\n" +
			"the units, systemd restarts a daemon that ends or hangs, and after a reboot everything\n" +
			"comes back. The units keep the flags that you give here. Without systemd, `pando up`\n" +
			"starts a warden, which restarts the daemons until the next reboot. The units also have\n" +
			"the flags that an earlier start of this data folder had.",
		Example: "  pando install && pando up\n  pando install --join 192.0.2.10 --token pando1…",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(p.locate(), completeStore(&p)); err != nil {
				return err
			}
			if _, err := p.recallFlags(c.Flags()); err != nil {
				return err
			}
			args := p.given(c.Flags()) // complete adds the machine's present addresses, which may change
			if err := p.complete(); err != nil {
				return err
			}
			p.keep = p.lastingFlags(c.Flags())
			return m.install(c.Context(), p, args)
		},
	}
	p.flags(c)
	p.joinFlags(c)
	m.unitFlags(c, &p)
	return out.Flag(c)
}

// Uninstall returns `pando uninstall`.
func Uninstall(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	c := &cobra.Command{
		Use: "uninstall", Short: "remove the units that install wrote",
		Long: "Disable and remove the systemd units of the daemons, which must have ended. Services,\n" +
			"states and logs stay.",
		Example: "  pando down && pando uninstall", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.locate(); err != nil {
				return err
			}
			return m.uninstall(c.Context(), p)
		},
	}
	p.folderFlags(c)
	m.unitFlags(c, &p)
	return out.Flag(c)
}

// unitFlags adds the hidden flag of the folder for units, which tests set.
func (machine) unitFlags(c *cobra.Command, p *place) {
	c.Flags().StringVar(&p.Units.Dir, "unit-dir", systemd.Dir, "folder for systemd units")
	_ = c.Flags().MarkHidden("unit-dir")
}

// given returns the flags of a daemon's unit: its folders, its name, and the flags that the
// operator gave. The daemon finds the other settings at each start.
func (p place) given(flags *pflag.FlagSet) []string {
	out := []string{"--run-dir", p.Run, "--data-dir", p.Data, "--host", p.Host}
	is := p.settings()
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if !flags.Changed(name) {
			continue
		}
		values := []string{is[name]}
		switch name {
		case "uplink":
			values = p.Uplinks
		case "label":
			values = p.Labels
		case "bgp-router":
			values = p.BGP.Routers
		case "store":
			values = p.Store.Endpoints
		}
		for _, v := range values {
			out = append(out, "--"+name, v)
		}
	}
	return out
}

// The capabilities of the units. The server gives up all but serverCapabilities when it starts: it
// needs the first and the last three for that. No agent and no instance changes the kernel's code, the clock or
// the policy of the machine.
var (
	serverUnitCapabilities = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
		"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"}
	agentUnitCapabilities = []string{"~CAP_SYS_MODULE", "CAP_SYS_TIME", "CAP_SYS_BOOT",
		"CAP_SYS_RAWIO", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_MAC_ADMIN",
		"CAP_MAC_OVERRIDE", "CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_SYSLOG", "CAP_LEASE"}
)

// unitsOf returns the units of some roles. self is the program.
func unitsOf(p place, self string, roles, args []string) []systemd.Unit {
	about := map[string]systemd.Unit{
		"server": {Description: "Pando server: the store, the control loop, the operators' API",
			Folders: []string{p.Data, p.Run}, Capabilities: serverUnitCapabilities},
		"agent": {Description: "Pando agent: instances and steering of this host", Delegate: true,
			Capabilities: agentUnitCapabilities},
	}
	var out []systemd.Unit
	for _, role := range roles {
		u := about[role]
		u.Name, u.Exec = units[role], append([]string{self, role}, args...)
		u.Log, u.OOMScore = daemonLog(p, role), oomScores[role]
		if len(out) > 0 {
			u.After = []string{out[0].File()}
		}
		out = append(out, u)
	}
	return out
}

func (m machine) install(ctx context.Context, p place, args []string) error {
	if !p.Units.Runs() {
		return fmt.Errorf("install the daemons: %w: systemd does not run on this machine; "+
			"`pando up` starts them, and a warden that restarts them", pando.ErrRefused)
	}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return fmt.Errorf("find the pando binary: %w", err)
	}
	if _, err := join(ctx, p); err != nil {
		return err
	}
	roles, err := p.roles()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.logs(), 0o755); err != nil {
		return fmt.Errorf("make the folder for logs: %w", err)
	}
	if err := p.writeFlags(p.keep); err != nil {
		return err
	}
	all := unitsOf(p, self, roles, args)
	if err := p.Units.Install(ctx, all...); err != nil {
		return fmt.Errorf("install the daemons: %w", err)
	}
	is := struct {
		Units []string `json:"units"`
	}{}
	for _, u := range all {
		is.Units = append(is.Units, u.File())
	}
	return m.Show(is, func(w io.Writer) {
		fmt.Fprintf(w, "installed %s: they start at every boot. Next: pando up\n",
			strings.Join(is.Units, " and "))
	})
}

func (m machine) uninstall(ctx context.Context, p place) error {
	for _, role := range []string{"agent", "server"} {
		if pid, alive := daemon(p, role); alive {
			return fmt.Errorf("uninstall the daemons: %w: the %s runs (pid %d); "+
				"`pando down` first", pando.ErrRefused, role, pid)
		}
	}
	if err := p.Units.Remove(ctx, units["agent"], units["server"]); err != nil {
		return fmt.Errorf("uninstall the daemons: %w", err)
	}
	is := struct {
		Removed bool `json:"removed"`
	}{true}
	return m.Show(is, func(w io.Writer) { fmt.Fprintln(w, "the units of pando are removed") })
}

// installed returns the units of some roles if systemd runs and has them for this place.
func (p place) installed(roles ...string) (names []string) {
	for _, role := range roles {
		if p.Units.Runs() && p.Units.Installed(units[role]) {
			names = append(names, units[role])
		}
	}
	return names
}

// begin starts the daemon of a role: by its unit, or as a process.
func (p place) begin(ctx context.Context, role string) error {
	if names := p.installed(role); len(names) > 0 {
		return p.Units.Start(ctx, names...)
	}
	return startDaemon(p, role)
}

// unitEnds stops the unit of a role, so that systemd does not start the daemon again. It reports
// whether there is one.
func (p place) unitEnds(ctx context.Context, role string) (bool, error) {
	names := p.installed(role)
	if len(names) == 0 {
		return false, nil
	}
	return true, p.Units.Stop(ctx, names...)
}

// settled returns an error for flags that the units do not have.
func (p place) settled(given map[string]bool) error {
	if len(p.installed("agent")) == 0 {
		return nil
	}
	for name := range p.settings() {
		if given[name] {
			return cli.Usagef("the units of this host have their own flags: run `pando install` with "+
				"--%s, then `pando up`", name)
		}
	}
	return nil
}
