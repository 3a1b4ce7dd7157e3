package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/wall"
)

// Rebalance returns `pando rebalance`.
func Rebalance(o *console.Console) *cobra.Command {
	var ask pando.RebalanceAsk
	within := drainWait
	c := &cobra.Command{
		Use: "rebalance [SERVICE]", Short: "move instances from loaded hosts to others",
		Long: "Make the loads of the hosts even, as after `pando hosts undrain` or for a new host. The\n" +
			"load of a host is the largest share of a resource that its instances may use. A service\n" +
			"without `place.spread` moves as a whole. An instance starts on the other host, and the\n" +
			"former one drains once it serves. Four services move at a time. Services with volumes, a\n" +
			"state or rollout.order stop-first stay, and so do jobs. A host that is drained gets nothing.\n\n" +
			"The command prints each move and ends when no further one helps. After Ctrl-C the moves in\n" +
			"progress end, and no others begin. --dry-run prints the plan.",
		Example: "  pando rebalance --dry-run\n  pando rebalance\n  pando rebalance website",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				if ask.Service, err = pando.ParseServiceKey(args[0]); err != nil {
					return err
				}
			}
			if err := rebalance(c.Context(), o, ask, within); ask.Service.Name != "" {
				return o.SuggestService(c.Context(), ask.Service, err)
			} else if err != nil {
				return err
			}
			return nil
		},
	}
	c.Flags().BoolVar(&ask.DryRun, "dry-run", false, "print the plan")
	cli.DurationVar(c.Flags(), &within, "timeout", within, "time limit")
	return o.Out.Flag(c)
}

// rebalanced is the answer of `pando rebalance`.
type rebalanced struct {
	Moves  []pando.RebalanceMove `json:"moves"`
	DryRun bool                  `json:"dry_run,omitempty"`
}

func rebalance(
	ctx context.Context, o *console.Console, ask pando.RebalanceAsk, limit time.Duration,
) error {
	is := rebalanced{Moves: []pando.RebalanceMove{}, DryRun: ask.DryRun}
	if ask.DryRun {
		plan, err := o.Client.Members().Rebalance(ctx, ask)
		if err != nil {
			return err
		}
		is.Moves = append(is.Moves, append(plan.Moving, plan.Next...)...)
		return o.Out.Show(is, is.print)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen, begun := map[string]bool{}, map[string]bool{} // the moves in progress, and all
	for {
		now, err := o.Client.Members().Rebalance(within, ask)
		switch {
		case within.Err() != nil && ctx.Err() == nil:
			return fmt.Errorf("waited %s: %w: the moves in progress continue (`pando status` shows "+
				"them); `pando rebalance` continues", limit, pando.ErrNotReady)
		case ctx.Err() != nil:
			return fmt.Errorf("%w: the moves in progress continue, and no others begin", ctx.Err())
		case errors.Is(err, pando.ErrUnavailable) && len(is.Moves) > 0: // a server restarts
		case err != nil:
			return err
		case len(now.Moving) == 0:
			return o.Out.Show(is, is.print)
		default:
			still := map[string]bool{}
			for _, m := range now.Moving {
				key := fmt.Sprintf("%s %s %s", m.Service, m.From, m.To)
				if still[key] = true; !seen[key] && begun[key] {
					return fmt.Errorf("%w: the move of %s failed and begins again; `pando why %[2]s` has the "+
						"reason", pando.ErrNotReady, m.Service)
				}
				if begun[key] = true; !seen[key] {
					is.Moves = append(is.Moves, m)
					fmt.Fprintf(o.Out.Stderr, "moving: %s\n", moveText(m))
				}
			}
			seen = still
		}
		_ = pando.Sleep(within, wall.Clock{}, o.Rest)
	}
}

func moveText(m pando.RebalanceMove) string {
	return fmt.Sprintf("%s of %s from %s to %s", cli.Count(m.Instances, "instance"), m.Service, m.From,
		m.To)
}

func (is rebalanced) print(w io.Writer) {
	switch {
	case len(is.Moves) == 0:
		fmt.Fprintln(w, "nothing moves: the hosts are even, or what they have cannot move")
		return
	case is.DryRun:
		for _, m := range is.Moves {
			fmt.Fprintln(w, cli.Clean(moveText(m)))
		}
		return
	}
	n := 0
	for _, m := range is.Moves {
		n += m.Instances
	}
	fmt.Fprintf(w, "%s moved; `pando hosts` shows the hosts\n", cli.Count(n, "instance"))
}
