package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/units"
)

// nominalBits is the assumed capacity of a unit without a limit. A NAT on one core serves about
// that much (bench/function/wasm).
const nominalBits = 1_000_000_000

// groupFlags holds the flags of `pando fn run --units` that into has to convert for units.Config.
type groupFlags struct {
	units, port, ports, capacity string
	durability                   string
	memoryMiB                    int64
	detach, strictRules          bool
}

// passedOn lists flags that a group passes to each of its units unchanged.
var passedOn = map[string]string{
	"set": "a line of configuration, KEY=VALUE", "rules": "a file of Snort rules for the IDS", "flows-max": "flows of which state is kept, per unit",
	"rules-var":    "a variable of the rules, NAME=VALUE",
	"idle-seconds": "seconds of silence after which a flow is forgotten", "fuel-per-packet": "fuel per packet",
	"memory-mib": "memory of one function", "on-trap": "what becomes of a packet on which a function trapped: drop or pass",
	"ring-frames": "frames that wait while a unit is off its core",
}

// runGroup is `pando fn run --units LEAST..MOST`.
func runGroup(ctx context.Context, env Env, binary string, args []string) error {
	if slices.Contains(args, "help") {
		args = []string{"--help"}
	}
	config, flags := units.Config{Binary: binary}, groupFlags{}
	c := &cobra.Command{
		Use: "run FUNCTION.wasm… --iface IN [--out OUT] --units LEAST..MOST", Short: "run functions as a group of units, to which flowlets are steered",
		Example:      "  pando fn run nat.wasm --set address=192.0.2.1 --iface lan --out wan --units 1..4",
		Args:         cobra.MinimumNArgs(1),
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, functions []string) error {
			config.Functions = functions
			for name := range passedOn {
				values, err := c.Flags().GetStringArray(name)
				if err != nil {
					return err
				}
				for _, v := range values {
					config.Flags = append(config.Flags, "--"+name, v)
				}
			}
			if flags.strictRules {
				config.Flags = append(config.Flags, "--strict-rules")
			}
			if err := flags.into(&config); err != nil {
				return err
			}
			if flags.detach {
				return detached(env, config, args)
			}
			return units.Run(c.Context(), config, func() {
				fmt.Fprintf(env.Stdout, "%s runs: `pando fn ls`, `pando fn top`, `pando fn rm %[1]s`\n", config.Name)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&flags.strictRules, "strict-rules", false, "refuse rules that are not understood whole, instead of leaving them out")
	f.StringVar(&flags.units, "units", "1", "units: so many, or LEAST..MOST as demand asks")
	f.StringVar(&config.In, "iface", "", "the device whose packets the functions get")
	f.StringVar(&config.Out, "out", "", "the device that they leave by, and whose packets leave by --iface; without it, they go back where they came from")
	f.StringVar(&config.Name, "name", "", "name of the group; without it, those of the functions")
	f.StringVar(&config.Tenant, "tenant", "default", "who pays")
	f.BoolVarP(&flags.detach, "detach", "d", false, "come back when the group is ready, and leave it running")
	f.Bool("restart", true, "start units again when they crash; a group always does")
	f.StringVar(&flags.port, "port", "auto", "how packets come: units of a group have theirs by AF_PACKET (packet)")
	f.StringVar(&flags.ports, "ports", "32768-65535", "numbers that may be leased to flows (a NAT's ports), which the units share")
	f.StringVar(&flags.capacity, "unit-capacity", "", "bits per second that a unit serves at most, for example 20M; without it, as many as it can")
	f.StringVar(&flags.durability, "durability", "none", "what a unit's death may cost: what changed since it last pushed a state (none), or no state (log: an output log beside the units)")
	f.Int64Var(&flags.memoryMiB, "unit-memory-mib", 0, "MiB of memory that a unit's process may use in all; one that needs more is ended, and replaced")
	f.Float64Var(&config.Limits.CPUs, "unit-cpus", 0, "processors that a unit's process may use, for example 0.5")
	f.Uint32Var(&config.Targets, "replicas", 2, "units that a flow's state is pushed to when it falls silent (K), up to 3")
	f.DurationVar(&config.Gap, "gap", 500*time.Microsecond, "a longer silence of a flow ends a flowlet (T)")
	f.BoolVar(&config.PerFlow, "per-flow", false, "leave a flow on its first unit, to compare with")
	f.StringVar(&config.Store, "state-store", "", "socket of a Redis that keeps the states instead of the units, to compare with")
	f.StringVar(&config.Exchange, "exchange", "memory", "how units hand states to each other: memory or udp")
	f.StringVar(&config.Chaos, "chaos", "", "LOSS,REPETITION,DISORDER in percent on the way to and between units, for tests")
	f.StringVar(&config.RunDir, "run-dir", "/run/pando/"+functionsFolder, "where running units have their sockets and logs")
	f.StringVar(&config.DataDir, "data-dir", "/var/lib/pando/"+functionsFolder, "where the meters are kept")
	for name, what := range passedOn {
		f.StringArray(name, nil, what)
	}
	c.SetArgs(args)
	c.SetOut(env.Stdout)
	c.SetErr(env.Stderr)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; `pando fn run --units help` lists what a group takes", err)}
	})
	return c.ExecuteContext(ctx)
}

// asRoot adds advice to a permission error.
func asRoot(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: run it as root", err)
	}
	return err
}

// into converts the flags and stores the results in the configuration.
func (f *groupFlags) into(c *units.Config) (err error) {
	least, most, ranged := strings.Cut(f.units, "..")
	if !ranged {
		most = least
	}
	var one, two error
	c.Least, one = strconv.Atoi(least)
	c.Most, two = strconv.Atoi(most)
	if one != nil || two != nil || c.Least < 1 || c.Most < c.Least || c.Most > 32 {
		return fmt.Errorf("%w: --units %s: want a number, or LEAST..MOST with 1 ≤ LEAST ≤ MOST ≤ 32", pando.ErrInvalid, f.units)
	}
	first, last, _ := strings.Cut(f.ports, "-")
	c.Ports[0], one = strconv.Atoi(first)
	c.Ports[1], two = strconv.Atoi(last)
	if one != nil || two != nil || c.Ports[0] < 0 || c.Ports[1] < c.Ports[0] || c.Ports[1] > 65535 {
		return fmt.Errorf("%w: --ports %s: want FIRST-LAST, for example 32768-65535", pando.ErrInvalid, f.ports)
	}
	if f.port != "auto" && f.port != "packet" {
		return fmt.Errorf("%w: --port %s: units of a group have their packets by AF_PACKET: leave it out, or leave out --units", pando.ErrInvalid, f.port)
	}
	if f.durability != "none" && f.durability != "log" {
		return fmt.Errorf("%w: --durability %s: want none or log", pando.ErrInvalid, f.durability)
	}
	c.Log = f.durability == "log"
	if c.Log && (c.Exchange != "memory" || c.Store != "") {
		return fmt.Errorf("%w: --durability log of a group is in its memory: leave out --exchange and --state-store", pando.ErrInvalid)
	}
	if c.Out == c.In && c.In != "" {
		return fmt.Errorf("%w: --out %s is --iface, too: leave --out away and packets go back where they came from", pando.ErrInvalid, c.Out)
	}
	if c.In == "" {
		return fmt.Errorf("%w: --iface is missing: the device whose packets the functions get", pando.ErrInvalid)
	}
	if f.memoryMiB != 0 && f.memoryMiB < 16 {
		return fmt.Errorf("%w: --unit-memory-mib %d: a unit needs 16 at least", pando.ErrInvalid, f.memoryMiB)
	}
	c.Limits.MemoryBytes = f.memoryMiB << 20
	if c.Limits.CPUs != 0 && (c.Limits.CPUs < 0.01 || c.Limits.CPUs > 1024) {
		return fmt.Errorf("%w: --unit-cpus %g: want a number from 0.01 to 1024", pando.ErrInvalid, c.Limits.CPUs)
	}
	if c.Exchange != "memory" && c.Exchange != "udp" {
		return fmt.Errorf("%w: --exchange %s: want memory or udp", pando.ErrInvalid, c.Exchange)
	}
	if c.Name == "" {
		var stems []string
		for _, path := range c.Functions {
			stems = append(stems, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
		}
		c.Name = strings.Join(stems, "-")
	}
	c.UnitBits = nominalBits
	if f.capacity != "" {
		c.Limited = true
		c.UnitBits, err = bitsOf(f.capacity)
	}
	return err
}

// bitsOf parses a number of bits per second with the suffix K, M or G.
func bitsOf(text string) (uint64, error) {
	digits, factor := strings.TrimRight(text, "KMG"), uint64(1)
	if unit := text[len(digits):]; len(unit) == 1 {
		factor = map[string]uint64{"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}[unit]
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n == 0 || len(text)-len(digits) > 1 {
		return 0, fmt.Errorf("%w: --unit-capacity %s: want bits per second, for example 20M", pando.ErrInvalid, text)
	}
	return n * factor, nil
}

// detached starts the group again as a separate process and waits until the group is ready.
func detached(env Env, c units.Config, args []string) error {
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-d" || a == "--detach" || a == "--detach=true" })
	own, err := os.Executable()
	if err != nil {
		return err
	}
	if err := c.Free(); err != nil {
		return err
	}
	directory := filepath.Join(c.RunDir, c.Name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return asRoot(err)
	}
	path := filepath.Join(directory, "log")
	// The units of the group append to the same file.
	log, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return asRoot(err)
	}
	defer log.Close()
	child := exec.Command(own, append([]string{"fn", "run"}, args...)...)
	child.Stderr, child.SysProcAttr = log, &syscall.SysProcAttr{Setsid: true}
	said, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(said).ReadString('\n'); err == nil {
		_, err := fmt.Fprint(env.Stdout, line)
		return err
	}
	_ = child.Wait() // the log has the reason
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fmt.Fprint(env.Stderr, string(text))
	// The group never ran, so `pando fn ls` must not list it as crashed.
	if err := os.RemoveAll(directory); err != nil {
		return err
	}
	return codeError(max(1, child.ProcessState.ExitCode()))
}
