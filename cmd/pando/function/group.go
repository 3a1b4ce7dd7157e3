package function

import (
	"bufio"
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
	"github.com/spf13/pflag"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/units"
)

// nominalBits is the assumed capacity of a unit without a limit. A NAT on one core serves about
// that much (bench/function/wasm).
const nominalBits = 1_000_000_000

// groupFlags holds the flags of `pando fn run` that only a group has.
type groupFlags struct {
	units, capacity, store, exchange, chaos string
	replicas                                uint32
	gap                                     time.Duration
	perFlow, watch                          bool
}

// add adds the flags of a group to a command.
func (g *groupFlags) add(c *cobra.Command) { c.Flags().AddFlagSet(g.flags()) }

func (g *groupFlags) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("group", pflag.ContinueOnError)
	f.StringVar(&g.units, "units", "",
		"units of a group: N, or LEAST..MOST for as many as demand needs")
	f.StringVar(&g.capacity, "unit-capacity", "",
		"bits per second that a unit serves at most, for example 20M")
	f.Uint32Var(&g.replicas, "replicas", 2, "units that receive a silent flow's state (K), up to 3")
	cli.DurationVar(f, &g.gap, "gap", 500*time.Microsecond,
		"silence after which a flow begins a new flowlet (T)")
	f.BoolVar(&g.perFlow, "per-flow", false, "leave a flow on its first unit, for comparison")
	f.StringVar(&g.store, "state-store", "", "socket of a Redis that holds the states, for comparison")
	f.StringVar(&g.exchange, "exchange", "memory", "how units exchange states: memory or udp")
	f.StringVar(&g.chaos, "chaos", "", "LOSS,REPETITION,DISORDER in percent, for tests")
	f.BoolVar(&g.watch, watchFlag, false, "start the group again when a signal ends it")
	_ = f.MarkHidden(watchFlag)
	return f
}

// groupNames returns the names of the flags that only a group has.
func groupNames() (names []string) {
	new(groupFlags).flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// group runs functions as a group of units, here or as a separate process.
func (u unit) group(c *cobra.Command, g *groupFlags, functions []string) error {
	var lone []string
	for _, r := range loneRows {
		lone = append(lone, r.name)
	}
	if err := refuse(c, lone, "is for a single unit; leave out --units"); err != nil {
		return err
	}
	config, err := g.config(c.Flags(), functions)
	if err != nil {
		return err
	}
	if config.Binary, err = cli.FindBeside(binary); err != nil {
		return err
	}
	if c.Flags().Lookup("detach").Value.String() == "true" {
		return u.detach(config, append(slices.Clone(functions), arguments(c.Flags(), "detach")...))
	}
	if g.watch {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		args := slices.Concat([]string{"fn", "run"}, functions, arguments(c.Flags(), watchFlag))
		return u.watch(c.Context(), filepath.Join(config.RunDir, config.Name),
			func() *exec.Cmd { return exec.Command(own, args...) })
	}
	return units.Run(c.Context(), config, func() {
		fmt.Fprintf(u.Stdout, "%s runs: `pando fn ls`, `pando fn top`, `pando fn rm %[1]s`\n",
			config.Name)
	})
}

// passed lists the flags that a group passes to each of its units unchanged.
func passed() []string {
	names := []string{"ring-frames"}
	for _, r := range chainRows {
		if r.name != "ports" { // units share the block
			names = append(names, r.name)
		}
	}
	return names
}

// config converts the flags of a command line.
func (g *groupFlags) config(flags *pflag.FlagSet, functions []string) (c units.Config, err error) {
	value := func(name string) string { return flags.Lookup(name).Value.String() }
	c = units.Config{
		Functions: functions, In: value("iface"), Out: value("out"),
		Name: value("name"), Tenant: value("tenant"),
		Targets: g.replicas, Gap: g.gap, PerFlow: g.perFlow, Log: value("durability") == "log",
		Store: g.store, Exchange: g.exchange, Chaos: g.chaos,
		RunDir: value("run-dir"), DataDir: value("data-dir"), UnitBits: nominalBits,
	}
	var rest []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(passed(), f.Name) {
			rest = append(rest, f.Name)
		}
	})
	c.Flags = arguments(flags, rest...)
	if c.Name == "" {
		c.Name = nameOf(functions)
	}
	if c.Least, c.Most, err = span(g.units); err != nil {
		return c, err
	}
	if c.Ports, err = block(value("ports")); err != nil {
		return c, err
	}
	if c.Limits, err = limits(value("unit-memory-mib"), value("unit-cpus")); err != nil {
		return c, err
	}
	if g.capacity != "" {
		c.Limited = true
		if c.UnitBits, err = bitsOf(g.capacity); err != nil {
			return c, err
		}
	}
	for name, allowed := range map[string][]string{
		"durability": {"none", "log"}, "exchange": {"memory", "udp"}, "port": {"auto", "packet", "xdp"},
	} {
		if !slices.Contains(allowed, value(name)) {
			return c, cli.Usagef("--%s: want %s, got %q", name, strings.Join(allowed, " or "), value(name))
		}
	}
	return c, together(c, value("port"))
}

// together returns an error for values that a group cannot have at the same time.
func together(c units.Config, port string) error {
	switch {
	case port == "xdp":
		return fmt.Errorf("%w: --port xdp: units of a group receive by AF_PACKET; "+
			"leave out --port, or leave out --units", pando.ErrInvalid)
	case c.Log && (c.Exchange != "memory" || c.Store != ""):
		return fmt.Errorf("%w: --durability log: the output log of a group is in its memory; "+
			"leave out --exchange and --state-store", pando.ErrInvalid)
	}
	return nil
}

// nameOf returns the names of functions, joined.
func nameOf(functions []string) string {
	var stems []string
	for _, path := range functions {
		stems = append(stems, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
	}
	return strings.Join(stems, "-")
}

// span parses a number of units: N, or LEAST..MOST.
func span(text string) (least, most int, err error) {
	first, last, ranged := strings.Cut(text, "..")
	if !ranged {
		last = first
	}
	least, one := strconv.Atoi(first)
	most, two := strconv.Atoi(last)
	if one != nil || two != nil || least < 1 || most < least || most > 32 {
		return 0, 0, cli.Usagef("--units: want N, or LEAST..MOST with 1 ≤ LEAST ≤ MOST ≤ 32, got %q",
			text)
	}
	return least, most, nil
}

// block parses a block of numbers, FIRST-LAST.
func block(text string) (b [2]int, err error) {
	first, last, _ := strings.Cut(text, "-")
	var one, two error
	b[0], one = strconv.Atoi(first)
	b[1], two = strconv.Atoi(last)
	if one != nil || two != nil || b[0] < 0 || b[1] < b[0] || b[1] > 65535 {
		return b, cli.Usagef("--ports: want FIRST-LAST, for example 32768-65535, got %q", text)
	}
	return b, nil
}

// limits parses the limits of a unit's process. An empty text is no limit.
func limits(mib, cpus string) (r pando.Resources, err error) {
	if mib != "" {
		n, err := strconv.ParseInt(mib, 10, 32)
		if err != nil || n < 16 {
			return r, cli.Usagef("--unit-memory-mib: want 16 or more, got %q", mib)
		}
		r.MemoryBytes = n << 20
	}
	if cpus != "" {
		if r.CPUs, err = strconv.ParseFloat(cpus, 64); err != nil || !(r.CPUs >= 0.01 && r.CPUs <= 1024) {
			return r, cli.Usagef("--unit-cpus: want a number from 0.01 to 1024, got %q", cpus)
		}
	}
	return r, nil
}

// bitsOf parses a number of bits per second with the suffix K, M or G.
func bitsOf(text string) (uint64, error) {
	digits, factor := strings.TrimRight(text, "KMG"), uint64(1)
	if unit := text[len(digits):]; len(unit) == 1 {
		factor = map[string]uint64{"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}[unit]
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n == 0 || len(text)-len(digits) > 1 {
		return 0, cli.Usagef("--unit-capacity: want bits per second, for example 20M, got %q", text)
	}
	return n * factor, nil
}

// detach starts the group again as a separate process and waits until the group is ready.
func (u unit) detach(c units.Config, args []string) error {
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
	child := exec.Command(own, append([]string{"fn", "run", "--" + watchFlag}, args...)...)
	child.Stderr, child.SysProcAttr = log, &syscall.SysProcAttr{Setsid: true}
	ready, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(ready).ReadString('\n'); err == nil {
		_, err := fmt.Fprint(u.Stdout, line)
		return err
	}
	_ = child.Wait() // the log has the reason
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fmt.Fprint(u.Stderr, string(text))
	// The group never ran, so `pando fn ls` must not list it as crashed.
	if err := os.RemoveAll(directory); err != nil {
		return err
	}
	return cli.Code(max(1, child.ProcessState.ExitCode()))
}

// asRoot adds advice to a permission error.
func asRoot(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: run it as root", err)
	}
	return err
}
