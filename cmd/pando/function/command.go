// Package function holds `pando fn`: network functions on this machine, which need no cluster. It
// owns the flags and the help of `pando fn run` and `pando fn test`. pando-unit, which it starts,
// handles the packets.
//
// It never reads a packet or a module.
package function

import (
	"github.com/spf13/cobra"

	"pando.run/pando/cmd/pando/cli"
)

// Command returns `pando fn`.
func Command(env cli.Env) *cobra.Command {
	c := &cobra.Command{
		Use: "fn", Short: "write, build, test and run network functions",
		Long: "Write, build, test and run network functions on this machine. No other part of Pando\n" +
			"has to run.\n\n" +
			"The guide is docs/guides/network-function.md.",
		Example: "  pando fn new --lang go hundred\n  pando fn build hundred\n" +
			"  pando fn generate in.pcap\n" +
			"  pando fn test hundred/hundred.wasm --pcap in.pcap -o json\n" +
			"  pando fn run hundred/hundred.wasm --iface eth1 --out eth2 -d\n  pando fn rm hundred",
	}
	u := unit{env}
	c.AddCommand(
		u.command("new DIR", "make a folder with a first function", "  pando fn new --lang go hundred"),
		u.command("build DIR", "build the function of a folder, in C or Go", "  pando fn build hundred"),
		u.command("generate CAPTURE", "make a capture to test and play",
			"  pando fn generate in.pcap --flows 1000 --seconds 10"),
		u.test(),
		u.run(),
		u.command("ls", "list the units of this machine", "  pando fn ls -o json"),
		u.command("top", "show the load of the units", "  pando fn top -n 1"),
		u.command("logs UNIT", "print the log of a unit and its functions", "  pando fn logs -f hundred"),
		u.command("rm UNIT…", "end units", "  pando fn rm hundred"),
		u.command("bill", "print the packets and the fuel of each tenant",
			"  pando fn bill --tenant default"),
		u.command("replay CAPTURE", "play a capture on a device of this machine",
			"  pando fn replay in.pcap --iface veth-in --speed 20 --copies 20"),
		u.command("receive", "measure packets of `pando fn replay --stamp`",
			"  pando fn receive --iface veth-out --write out.pcap"),
		u.command("log", "keep the output log of units on other hosts",
			"  (umask 077; pando fn log --new-key default > log.keys)\n"+
				"  pando fn log --listen 192.0.2.2:7001 --keys log.keys"),
		u.command("simulate [RULE…]", "compare rules of assignment in virtual time",
			"  pando fn simulate --captures DIR --workload A --load 9500 star flow,reallocate_ms=50"),
	)
	return c
}
