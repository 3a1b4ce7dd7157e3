package function

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// test returns `pando fn test`.
func (u unit) test() *cobra.Command {
	c := &cobra.Command{
		Use: "test FUNCTION.wasm… --pcap FILE", Short: "send a capture through functions",
		Long: "Send a capture through functions, without a network and without a clock. With\n" +
			"--expect, compare the output packet by packet; times do not count.",
		Example: "  pando fn test hundred/hundred.wasm --pcap in.pcap --expect out.pcap -o json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, functions []string) error {
			return u.call(slices.Concat([]string{"test"}, functions, arguments(c.Flags())))
		},
	}
	add(c, chainRows...)
	add(c, testRows...)
	return c
}

// run returns `pando fn run`: one unit, which pando-unit runs, or a group of units.
func (u unit) run() *cobra.Command {
	var g groupFlags
	c := &cobra.Command{
		Use:   "run FUNCTION.wasm… --iface IN [--out OUT]",
		Short: "run functions on devices of this machine",
		Long: "Run functions on devices of this machine, in one process: a unit. Packets of --iface\n" +
			"pass the functions in order and leave by --out. Packets of --out pass them and leave\n" +
			"by --iface.\n\n" +
			"With --units, run a group of units instead. The kernel steers each flowlet to one\n" +
			"unit, units start and leave with demand, and flow state moves between them. Only a\n" +
			"group has --chaos, --exchange, --gap, --per-flow, --replicas, --state-store and\n" +
			"--unit-capacity; only a single unit has --log, --log-key, --log-lost-ms, --on-log-lost and\n" +
			"--hang-ms.",
		Example: "  pando fn run nat.wasm --set address=192.0.2.1 --iface lan --out wan -d\n" +
			"  pando fn run nat.wasm --set address=192.0.2.1 --iface lan --out wan --units 1..4",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, functions []string) error {
			switch in := value(c, "iface"); in {
			case "":
				return cli.Usagef("--iface is missing; it names the device whose packets the functions receive")
			case value(c, "out"):
				return fmt.Errorf("%w: --out %s is also --iface; "+
					"leave --out away and packets return by --iface", pando.ErrInvalid, in)
			}
			if c.Flags().Changed("units") {
				return u.group(c, &g, functions)
			}
			if err := refuse(c, groupNames(), "is for a group; add --units LEAST..MOST"); err != nil {
				return err
			}
			return u.call(slices.Concat([]string{"run"}, functions, arguments(c.Flags())))
		},
	}
	add(c, unitRows...)
	add(c, chainRows...)
	add(c, loneRows...)
	g.add(c)
	return c
}

func value(c *cobra.Command, flag string) string { return c.Flags().Lookup(flag).Value.String() }

// refuse returns an error for the first of some flags that the command line has.
func refuse(c *cobra.Command, names []string, why string) error {
	for _, name := range names {
		if c.Flags().Changed(name) {
			return cli.Usagef("--%s %s", name, why)
		}
	}
	return nil
}
