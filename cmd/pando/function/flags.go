package function

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// row is a flag that Go describes and pando-unit checks.
type row struct {
	name, letter string
	value        string // the form of the value, for the help; "" = a switch
	def          string // the default of pando-unit
	repeats      bool
	usage        string
}

// chainRows are the flags that choose and configure the functions of a chain.
var chainRows = []row{
	{name: "set", value: "KEY=VALUE", repeats: true,
		usage: "a line of configuration; NAME.KEY=VALUE selects one function"},
	{name: "rules", value: "FILE", repeats: true,
		usage: "a file of Snort rules, for a function ids*.wasm"},
	{name: "rules-var", value: "NAME=VALUE", repeats: true,
		usage: "a variable of the rules (HOME_NET = private networks)"},
	{name: "strict-rules", usage: "refuse rules with unsupported parts instead of skipping them"},
	{name: "ports", value: "FIRST-LAST", def: "32768-65535",
		usage: "numbers to lease to flows, such as a NAT's ports"},
	{name: "flows-max", value: "N", def: "65536",
		usage: "largest number of flows with state, per unit"},
	{name: "idle-seconds", value: "N", def: "300", usage: "forget a flow after N seconds of silence"},
	{name: "fuel-per-packet", value: "N", def: "1000000",
		usage: "fuel per packet, about one per instruction"},
	{name: "memory-mib", value: "MIB", def: "64", usage: "memory of one function"},
	{name: "on-trap", value: "drop|pass", def: "drop",
		usage: "fate of a packet on which a function trapped"},
}

// testRows are the flags of `pando fn test` alone.
var testRows = []row{
	{name: "pcap", value: "FILE", usage: "the input capture, pcap or pcapng"},
	{name: "expect", value: "FILE", usage: "the expected output; a difference ends with exit code 1"},
	{name: "write", value: "FILE", usage: "write the output to this file"},
	{name: "output", letter: "o", value: "text|json", def: "text",
		usage: "format: text for people, json for programs"},
}

// unitRows are the flags of `pando fn run` for every unit, alone or in a group.
var unitRows = []row{
	{name: "iface", value: "DEVICE", usage: "the device whose packets the functions receive"},
	{name: "out", value: "DEVICE",
		usage: "the device for packets of --iface, and back (default: --iface)"},
	{name: "port", value: "auto|packet|xdp", def: "auto",
		usage: "receive by AF_PACKET or AF_XDP; auto tries AF_XDP on physical devices"},
	{name: "name", usage: "name of the unit or group (default: of the functions)", value: "NAME"},
	{name: "tenant", value: "NAME", def: "default", usage: "the tenant that pays"},
	{name: "detach", letter: "d", usage: "return when the unit is ready, and leave it running"},
	{name: "restart", usage: "start a unit again when it crashes; a group always does"},
	{name: "ring-frames", value: "N", def: "32768",
		usage: "frames that can wait while a unit is off its core"},
	{name: "unit-memory-mib", value: "MIB",
		usage: "memory of a unit's process; beyond it, the process is killed"},
	{name: "unit-cpus", value: "N", usage: "processors of a unit's process, for example 0.5"},
	{name: "durability", value: "none|log", def: "none",
		usage: "log keeps all flow state after a unit's death, in an output log"},
	{name: "run-dir", value: "DIR", def: runFolder,
		usage: "folder with sockets and logs of running units"},
	{name: "data-dir", value: "DIR", def: dataFolder, usage: "folder with the meters"},
}

// loneRows are the flags of `pando fn run` without --units.
var loneRows = []row{
	{name: "log", value: "HOST:PORT",
		usage: "output log on another host, run there by `pando fn log`"},
	{name: "log-key", value: "FILE", usage: "with --log: a file with the tenant's key there"},
	{name: "on-log-lost", value: "stop|go-on", def: "stop",
		usage: "without an output log: no packet leaves, or packets leave unprotected"},
	{name: "log-lost-ms", value: "MS", def: "1000",
		usage: "with --on-log-lost go-on: wait this long for a log first"},
	{name: "hang-ms", value: "MS", def: "500",
		usage: "with --durability log: kill a unit after this silence"},
}

// given holds the values of one flag.
type given struct {
	row
	values []string
}

// String returns the newest value, or the default.
func (g *given) String() string {
	if len(g.values) > 0 {
		return g.values[len(g.values)-1]
	}
	return g.def
}

// Set implements pflag.Value.
func (g *given) Set(v string) error {
	if !g.repeats {
		g.values = nil
	}
	g.values = append(g.values, v)
	return nil
}

// Type returns the form of the value, for the help.
func (g *given) Type() string {
	if g.value == "" {
		return "bool"
	}
	return g.value
}

// add adds the flags of some rows to a command.
func add(c *cobra.Command, rows ...row) {
	for _, r := range rows {
		f := c.Flags().VarPF(&given{row: r}, r.name, r.letter, r.usage)
		if r.value == "" {
			f.NoOptDefVal, f.DefValue = "true", "false"
		}
	}
}

// arguments returns the flags of a command line as arguments for another program, except for some.
func arguments(flags *pflag.FlagSet, except ...string) (out []string) {
	flags.Visit(func(f *pflag.Flag) {
		g, fromRow := f.Value.(*given)
		switch {
		case slices.Contains(except, f.Name):
		case !fromRow:
			out = append(out, "--"+f.Name+"="+f.Value.String())
		case g.value == "" && g.String() == "true":
			out = append(out, "--"+f.Name)
		case g.value != "":
			for _, v := range g.values {
				out = append(out, "--"+f.Name+"="+v)
			}
		}
	})
	return out
}
