package labs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/wall"
	"pando.run/pando/lab"
)

// openLab returns the lab that a command disturbs.
type openLab func() (*lab.Lab, error)

// labFaults returns the commands that disturb a lab's network and hosts.
func labFaults(o *console.Console, open openLab) []*cobra.Command {
	step := func(verb string, least, most int, use, short, example string) *cobra.Command {
		return &cobra.Command{
			Use: verb + use, Short: short, Example: "  pando lab " + example,
			Args: cobra.RangeArgs(least, most),
			RunE: func(c *cobra.Command, args []string) error {
				return doStep(c.Context(), open, lab.Step{Verb: verb, Hosts: args})
			},
		}
	}
	return []*cobra.Command{
		step("cut", 2, 2, " A B", "drop every frame between two members", "cut host1 host2"),
		step("block", 2, 2, " FROM TO", "drop every frame from one member to another",
			"block host1 host2"),
		labLoss(open), labSlow(open),
		step("pause", 1, 1, " HOST", "stop every process of a host", "pause host2"),
		step("resume", 1, 1, " HOST", "end a pause", "resume host2"),
		step("kill", 1, 1, " HOST", "end a host, as a power cut would", "kill host3"),
		step("boot", 1, 1, " HOST", "start a dead host and its Pando again", "boot host3"),
		step("heal", 0, 100, " [HOST…]", "end cuts, losses, rates and pauses", "heal"),
		labPlay(o, open), labChaos(o, open),
	}
}

func doStep(ctx context.Context, open openLab, s lab.Step) error {
	l, err := open()
	if err != nil {
		return err
	}
	return perform(ctx, l, s)
}

// perform does one step. A booted host starts the Pando that it ran before.
func perform(ctx context.Context, l *lab.Lab, s lab.Step) error {
	if err := l.Do(ctx, s); err != nil || s.Verb != "boot" {
		return err
	}
	if former, _ := os.ReadDir(l.Data(s.Hosts[0])); len(former) == 0 {
		return nil
	}
	self, err := os.Executable()
	if err == nil {
		_, err = labRun(ctx, l, s.Hosts[0], self, "up")
	}
	return err
}

func labLoss(open openLab) *cobra.Command {
	return &cobra.Command{
		Use: "loss HOST SHARE", Short: "drop a share of a member's frames at random",
		Example: "  pando lab loss host2 5%", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			share, err := lab.ParseShare(args[1])
			if err != nil {
				return err
			}
			return doStep(c.Context(), open, lab.Step{Verb: "loss", Hosts: args[:1], Share: share})
		},
	}
}

func labSlow(open openLab) *cobra.Command {
	var rate string
	c := &cobra.Command{
		Use: "slow HOST --rate RATE", Short: "limit a member's link, in each direction",
		Example: "  pando lab slow host2 --rate 10mbit", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			bits, err := lab.ParseRate(rate)
			if err != nil {
				return err
			}
			return doStep(c.Context(), open, lab.Step{Verb: "slow", Hosts: args, Rate: bits})
		},
	}
	c.Flags().StringVar(&rate, "rate", "10mbit", "like 500kbit, 10mbit, 1gbit")
	return c
}

func labPlay(o *console.Console, open openLab) *cobra.Command {
	return &cobra.Command{
		Use: "play FILE", Short: "play a scenario of faults",
		Long: "Play a scenario: a line per step, with its time after the begin. Verbs are cut, block, loss,\n" +
			"slow, pause, resume, kill, boot and heal, with the arguments of these commands:\n\n" +
			"  2s    cut host1 host2\n  3s    slow host3 10mbit\n  3s    loss host2 5%\n" +
			"  5s    kill host3\n  8s    boot host3\n  10s   heal",
		Example: "  pando lab play faults.txt", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			text, err := cli.ReadFile("play a scenario", args[0],
				"write one: `pando lab chaos --print` prints an example")
			if err != nil {
				return err
			}
			steps, err := lab.ReadScenario(bytes.NewReader(text))
			if err != nil {
				return fmt.Errorf("play %s: %w: %w", args[0], pando.ErrInvalid, err)
			}
			return play(c.Context(), o, open, steps)
		},
	}
}

func labChaos(o *console.Console, open openLab) *cobra.Command {
	var seed uint64
	var faults int
	var gap time.Duration
	var show bool
	c := &cobra.Command{
		Use: "chaos", Short: "play random faults; the same seed gives the same ones",
		Example: "  pando lab chaos --seed 7 --faults 20 --gap 2s\n" +
			"  pando lab chaos --seed 7 --print >faults.txt",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := open()
			if err != nil {
				return err
			}
			if faults < 1 || faults > 1000 || gap <= 0 {
				return fmt.Errorf("play %d faults, %s apart: want 1 to 1000, and a gap above 0", faults, gap)
			}
			var names []string
			for _, h := range l.Hosts {
				names = append(names, h.Name)
			}
			steps := lab.Chaos(seed, names, faults, gap)
			if show {
				var text strings.Builder
				for _, s := range steps {
					fmt.Fprintln(&text, s)
				}
				return o.Out.Print([]byte(text.String()))
			}
			return play(c.Context(), o, open, steps)
		},
	}
	c.Flags().Uint64Var(&seed, "seed", 1, "of the dice")
	c.Flags().IntVar(&faults, "faults", 10, "number of faults, one after another")
	cli.DurationVar(c.Flags(), &gap, "gap", 2*time.Second, "length of a fault, and of the rest behind it")
	c.Flags().BoolVar(&show, "print", false, "print the scenario and play nothing")
	return c
}

// play performs a scenario and prints each step before it is done.
func play(ctx context.Context, o *console.Console, open openLab, steps []lab.Step) error {
	l, err := open()
	if err != nil {
		return err
	}
	if err := known(l, steps); err != nil {
		return err
	}
	return lab.Play(ctx, wall.Clock{}, steps, func(ctx context.Context, s lab.Step) error {
		if err := o.Out.Print([]byte(s.String() + "\n")); err != nil {
			return err
		}
		return perform(ctx, l, s)
	})
}

// known refuses a scenario with unknown members before its first step.
func known(l *lab.Lab, steps []lab.Step) error {
	var names []string
	for _, h := range append(slices.Clone(l.Hosts), l.Client) {
		names = append(names, h.Name)
	}
	for _, s := range steps {
		for _, name := range s.Hosts {
			if !slices.Contains(names, name) {
				return fmt.Errorf("%s: the lab has no member %q; it has %s", s, name,
					strings.Join(names, ", "))
			}
		}
	}
	return nil
}
