package operator

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// Hosts returns `pando hosts`.
func Hosts(o *Console) *cobra.Command {
	c := o.Flag(&cobra.Command{
		Use: "hosts", Short: "list hosts", Example: "  pando hosts", Args: cobra.NoArgs,
		Long: "List the hosts of the cluster. The exit code is 12 if one of them is frozen: its agent\n" +
			"does not recognise the store and keeps what it has.",
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
	c.AddCommand(o.removeHost())
	return c
}

func (o *Console) removeHost() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm HOST", Short: "end the membership of a host",
		Long: "End the membership of a host. Its certificate becomes invalid, its name and slot\n" +
			"become free, and its instances are forgotten. Services that can start elsewhere do so.\n" +
			"A present host with instances is refused, and so is a host with states, unless --force\n" +
			"is given. Processes on the host keep running; `pando down` there stops them. Run this\n" +
			"command on the server's host.",
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
