// Package host holds the commands about hosts: their list, their drains and rights, and their faults.
package host

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/spec/span"
)

// Hosts returns `pando hosts`.
func Hosts(o *console.Console) *cobra.Command {
	c := o.Out.Flag(&cobra.Command{
		Use: "hosts", Short: "list hosts", Example: "  pando hosts", Args: cobra.NoArgs,
		Long: "List the hosts of the cluster. The leader is the server that decides. Rights are those\n" +
			"of the host's operators (`pando hosts allow`). The exit code is 12 if one of the hosts is\n" +
			"frozen: its agent does not recognise the store and keeps what it has.",
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := o.Client.Hosts(c.Context())
			if err != nil {
				return err
			}
			if err := o.Out.Show(all, func(w io.Writer) { hosts(w, all, time.Now()) }); err != nil {
				return err
			}
			return console.FrozenCode(all)
		},
	})
	c.AddCommand(setRight(o, "allow", true), setRight(o, "deny", false), removeHost(o), drainHost(o),
		undrainHost(o))
	return c
}

// setRight returns `pando hosts allow` or `pando hosts deny`.
func setRight(o *console.Console, verb string, may bool) *cobra.Command {
	short := "give rights to the operators of a host, or grants to it"
	if !may {
		short = "take rights or grants from a host"
	}
	return o.Out.Flag(&cobra.Command{
		Use: verb + " HOST WORD…", Short: short,
		Long: strings.ToUpper(short[:1]) + short[1:] + ". Every member may read, scale and remove\n" +
			"services. WORD is a right of the operators:\n" +
			"  deploy  deploy, rollback, rollouts, images, secrets and volumes; values of environments;\n" +
			"          pando rm --purge\n" +
			"  exec    commands inside instances\n" +
			"  admit   tokens for new hosts, and the end of a membership\n" +
			"or a grant, something of the host for instances with `grants` in their spec:\n" +
			"  device=NAME              a file in /dev, such as device=kvm\n" +
			"  path=PATH:ro, path=PATH:rw  a file or folder, such as path=/proc/modules:ro\n" +
			"  netns=host               the network of the host\n" +
			"The right to deploy runs programs as root on every host. A change counts at once for new\n" +
			"instances, and running ones keep their grants. `pando audit --grants` lists the grants,\n" +
			"and `pando hosts -o json` shows the author of each. Run this command on a server's host.",
		Example: "  pando hosts " + verb + " host2 deploy exec\n  pando hosts " + verb +
			" host2 device=kvm",
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return setWords(c.Context(), o, args[0], args[1:], may)
		},
	})
}

// changedWords is the answer of `pando hosts allow` and `pando hosts deny`.
type changedWords struct {
	Host   pando.HostName `json:"host"`
	Rights []pando.Right  `json:"rights"`
	Grants []pando.Grant  `json:"grants"`
	May    bool           `json:"may"`
}

// setWords changes rights and grants of a host. It changes nothing if one of the words is invalid.
func setWords(
	ctx context.Context, o *console.Console, host string, words []string, may bool,
) error {
	if err := pando.CheckLabel("host", host); err != nil {
		return err
	}
	is := changedWords{Host: pando.HostName(host), May: may,
		Rights: []pando.Right{}, Grants: []pando.Grant{}}
	for _, word := range words {
		if strings.Contains(word, "=") {
			g, err := pando.ParseGrant(word)
			if err != nil {
				return err
			}
			is.Grants = append(is.Grants, g)
			continue
		}
		r, err := pando.ParseRight(word)
		if err != nil {
			return err
		}
		is.Rights = append(is.Rights, r)
	}
	for _, r := range is.Rights {
		if err := o.Client.Members().SetRight(ctx, is.Host, r, may); err != nil {
			return err
		}
	}
	for _, g := range is.Grants {
		if err := o.Client.Members().SetGrant(ctx, is.Host, g, may); err != nil {
			return err
		}
	}
	return o.Out.Show(is, is.print)
}

func (is changedWords) print(w io.Writer) {
	say := func(words []string, yes, no string) {
		if len(words) == 0 {
			return
		}
		if !is.May {
			yes = no
		}
		fmt.Fprintf(w, "%s: "+yes+"\n", is.Host, strings.Join(words, ", "))
	}
	say(texts(is.Rights), "its operators may %s now", "its operators may not %s now")
	say(texts(is.Grants), "it gives %s now", "it gives %s to no new instance now")
}

// texts returns words as plain texts.
func texts[T ~string](all []T) []string {
	out := make([]string, len(all))
	for n, w := range all {
		out[n] = string(w)
	}
	return out
}

func removeHost(o *console.Console) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm HOST", Short: "end the membership of a host",
		Long: "End the membership of a host. Its certificate becomes invalid, its name and slot\n" +
			"become free, and its instances are forgotten. Services that can start elsewhere do so.\n" +
			"A present host with instances is refused, and so is a host with states or volumes, unless\n" +
			"--force is given. Processes on the host keep running; `pando down` there stops them. Run this\n" +
			"command on a server's host, or on a host with the right `admit`.",
		Example: "  pando hosts rm host2\n  pando hosts rm host2 --force", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			h := pando.HostName(args[0])
			if err := pando.CheckLabel("host", args[0]); err != nil {
				return err
			}
			if err := o.Client.RemoveHost(c.Context(), h, force); err != nil {
				return err
			}
			is := struct {
				Host pando.HostName `json:"host"`
			}{h}
			return o.Out.Show(is, func(w io.Writer) { fmt.Fprintf(w, "host %s is no longer a member\n", h) })
		},
	}
	c.Flags().BoolVar(&force, "force", false,
		"also end a present host with instances, or one with states or volumes")
	return o.Out.Flag(c)
}

// hosts prints the table of hosts, and the troubles of each.
func hosts(w io.Writer, all []pando.HostStatus, now time.Time) {
	rows := []string{console.Row("HOST", "ADDRESS", "ROLE", "STATE", "LAST SEEN", "INSTANCES", "CPUS",
		"MEMORY", "VERSION", "RIGHTS", "LABELS")}
	servers := ServersOf(all)
	for _, h := range all {
		memory := fmt.Sprintf("%.1f GiB", float64(h.Memory)/(1<<30))
		rows = append(rows, console.Row(h.Name, hostAddress(h.Address), RoleOf(h, servers), stateOf(h),
			lastSeen(h, now), h.Instances, h.CPUs, memory, h.Version, h.RightsText(), cmp.Or(h.Labels, "-")))
	}
	cli.Columns(w, rows...)
	drainedHosts(w, all, now)
	console.Troubles(w, all)
	for _, text := range skewed(all) {
		fmt.Fprintln(w, cli.Clean(text))
	}
	announcing(w, all)
	routing(w, all)
	for _, h := range all {
		if text := lost(h.Losses); text != "" {
			fmt.Fprintln(w, cli.Clean(fmt.Sprintf("%s %s", h.Name, text)))
		}
	}
}

// stateOf returns the state of a host, and whether an operator drains it.
func stateOf(h pando.HostStatus) string {
	if h.Drain == nil {
		return string(h.State)
	}
	return string(h.State) + ", drained"
}

// skewed returns a line for each host whose clock differs from the server's.
func skewed(all []pando.HostStatus) (out []string) {
	for _, h := range all {
		if h.SkewSeconds == nil || math.Abs(*h.SkewSeconds) < pando.SkewShown.Seconds() {
			continue
		}
		off, way := pando.Seconds(math.Abs(*h.SkewSeconds)), "ahead of"
		if *h.SkewSeconds < 0 {
			way = "behind"
		}
		text := fmt.Sprintf("the clock of %s is %s %s the server's", h.Name, console.Brief(off), way)
		if off >= pando.SkewFault {
			text = "fault: " + text + ": certificates, tokens, schedules and logs rest on it; set it there " +
				"(`timedatectl set-ntp true`)"
		}
		out = append(out, text)
	}
	return out
}

// ServersOf counts the hosts with a server.
func ServersOf(all []pando.HostStatus) (n int) {
	for _, h := range all {
		if h.Server {
			n++
		}
	}
	return n
}

// RoleOf returns the daemons of a host. One of several servers leads.
func RoleOf(h pando.HostStatus, servers int) string {
	switch {
	case h.Leads && servers > 1:
		return "leader, agent"
	case h.Server:
		return "server, agent"
	}
	return "agent"
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

// hostAddress returns a host's address, or "-" on a machine without a network.
func hostAddress(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

// lost lists the packets and flows that a host's steering lost and a user may miss. It returns ""
// without losses.
func lost(l *pando.Losses) string {
	if l == nil {
		return ""
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(l.Dropped)) {
		if why != pando.DroppedChatter {
			parts = append(parts, fmt.Sprintf("%d %s", l.Dropped[why], why))
		}
	}
	if l.Evicted > 0 {
		parts = append(parts, fmt.Sprintf("%d flows of a full table", l.Evicted))
	}
	if l.Forged > 0 {
		parts = append(parts, fmt.Sprintf("%d forged probes", l.Forged))
	}
	if len(parts) == 0 {
		return ""
	}
	text := "dropped " + strings.Join(parts, ", ")
	if l.Answered > 0 {
		text += fmt.Sprintf("; the senders of %d received an answer", l.Answered)
	}
	return text
}

// lastSeen returns the age of the newest sign of life of a host.
func lastSeen(h pando.HostStatus, now time.Time) string {
	if h.Heard.IsZero() {
		return "-"
	}
	return span.Text(now.Sub(h.Heard).Round(time.Second)) + " ago"
}
