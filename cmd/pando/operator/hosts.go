package operator

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// Hosts returns `pando hosts`.
func Hosts(o *Console) *cobra.Command {
	c := o.Flag(&cobra.Command{
		Use: "hosts", Short: "list hosts", Example: "  pando hosts", Args: cobra.NoArgs,
		Long: "List the hosts of the cluster. The leader is the server that decides. Rights are those\n" +
			"of the host's operators (`pando hosts allow`). The exit code is 12 if one of the hosts is\n" +
			"frozen: its agent does not recognise the store and keeps what it has.",
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := o.client.Hosts(c.Context())
			if err != nil {
				return err
			}
			if err := o.Show(all, func(w io.Writer) { hosts(w, all, time.Now()) }); err != nil {
				return err
			}
			return frozenCode(all)
		},
	})
	c.AddCommand(setRight(o, "allow", true), setRight(o, "deny", false), o.removeHost())
	return c
}

// setRight returns `pando hosts allow` or `pando hosts deny`.
func setRight(o *Console, verb string, may bool) *cobra.Command {
	short, done := "give rights to the operators of a host", "%s: its operators may %s now\n"
	if !may {
		short, done = "take rights from the operators of a host", "%s: its operators may not %s now\n"
	}
	return o.Flag(&cobra.Command{
		Use: verb + " HOST RIGHT…", Short: short,
		Long: strings.ToUpper(short[:1]) + short[1:] + ". Every member may read, scale and remove\n" +
			"services. RIGHT is one of:\n" +
			"  deploy  deploy, rollback, rollouts, images, secrets and volumes; values of environments\n" +
			"  exec    commands inside instances\n" +
			"  admit   tokens for new hosts, and the end of a membership\n" +
			"The right to deploy runs programs as root on every host. A change counts at once, and\n" +
			"`pando hosts -o json` shows its author. Run this command on a server's host.",
		Example: "  pando hosts " + verb + " host2 deploy exec",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := pando.CheckLabel("host", args[0]); err != nil {
				return err
			}
			h := pando.HostName(args[0])
			var rights []pando.Right
			for _, word := range args[1:] {
				r, err := pando.ParseRight(word)
				if err != nil {
					return err
				}
				rights = append(rights, r)
			}
			for _, r := range rights {
				if err := o.client.Members().SetRight(c.Context(), h, r, may); err != nil {
					return err
				}
			}
			is := struct {
				Host   pando.HostName `json:"host"`
				Rights []pando.Right  `json:"rights"`
				May    bool           `json:"may"`
			}{h, rights, may}
			return o.Show(is, func(w io.Writer) {
				fmt.Fprintf(w, done, h, strings.Join(args[1:], ", "))
			})
		},
	})
}

func (o *Console) removeHost() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm HOST", Short: "end the membership of a host",
		Long: "End the membership of a host. Its certificate becomes invalid, its name and slot\n" +
			"become free, and its instances are forgotten. Services that can start elsewhere do so.\n" +
			"A present host with instances is refused, and so is a host with states, unless --force\n" +
			"is given. Processes on the host keep running; `pando down` there stops them. Run this\n" +
			"command on a server's host, or on a host with the right `admit`.",
		Example: "  pando hosts rm host2\n  pando hosts rm host2 --force", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			h := pando.HostName(args[0])
			if err := pando.CheckLabel("host", args[0]); err != nil {
				return err
			}
			if err := o.client.RemoveHost(c.Context(), h, force); err != nil {
				return err
			}
			is := struct {
				Host pando.HostName `json:"host"`
			}{h}
			return o.Show(is, func(w io.Writer) { fmt.Fprintf(w, "host %s is no longer a member\n", h) })
		},
	}
	c.Flags().BoolVar(&force, "force", false,
		"also end a present host with instances, or one with states")
	return o.Flag(c)
}

// hosts prints the table of hosts, and the troubles of each.
func hosts(w io.Writer, all []pando.HostStatus, now time.Time) {
	rows := []string{row("HOST", "ADDRESS", "ROLE", "STATE", "LAST SEEN", "INSTANCES", "CPUS",
		"MEMORY", "VERSION", "RIGHTS", "LABELS")}
	servers := serversOf(all)
	for _, h := range all {
		memory := fmt.Sprintf("%.1f GiB", float64(h.Memory)/(1<<30))
		rows = append(rows, row(h.Name, hostAddress(h.Address), roleOf(h, servers), h.State,
			lastSeen(h, now), h.Instances, h.CPUs, memory, h.Version, h.RightsText(), cmp.Or(h.Labels, "-")))
	}
	cli.Columns(w, rows...)
	frozen(w, all)
	presumedDead(w, all)
	announcing(w, all)
	routing(w, all)
	for _, h := range all {
		if text := lost(h.Losses); text != "" {
			fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s %s", h.Name, text)))
		}
	}
	outOfReach(w, all)
}

// serversOf counts the hosts with a server.
func serversOf(all []pando.HostStatus) (n int) {
	for _, h := range all {
		if h.Server {
			n++
		}
	}
	return n
}

// roleOf returns the daemons of a host. One of several servers leads.
func roleOf(h pando.HostStatus, servers int) string {
	switch {
	case h.Leads && servers > 1:
		return "leader, agent"
	case h.Server:
		return "server, agent"
	}
	return "agent"
}

// outOfReach prints the hosts that get no new flows from others, which have no way to them.
func outOfReach(w io.Writer, all []pando.HostStatus) {
	for _, h := range all {
		if h.Losses != nil && h.Losses.Unreached != "" {
			fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s steers around hosts: %s", h.Name,
				h.Losses.Unreached)))
		}
	}
}

// announcing prints the hosts that answer for VIPs on their networks.
func announcing(w io.Writer, all []pando.HostStatus) {
	for _, h := range all {
		if h.Losses != nil && h.Losses.Announces != "" {
			fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s answers on %s for %s", h.Name, h.Segment,
				h.Losses.Announces)))
		}
	}
}
