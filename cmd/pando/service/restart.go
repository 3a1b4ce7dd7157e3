package service

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Restart returns `pando restart`.
func Restart(o *console.Console) *cobra.Command {
	var ask pando.RestartAsk
	c := o.WaitFlags(&cobra.Command{
		Use: "restart SERVICE [INSTANCE]", Short: "replace the instances of a service, or one of them",
		Long: "Replace all instances of a service, or one, by new ones of the same revision. A new one\n" +
			"serves before an old one drains, rollout.surge at a time. With rollout.order stop-first\n" +
			"an old one ends first, one at a time. A failed start is tried again with a back-off, and\n" +
			"the old instance serves meanwhile. --cancel ends the restart: the instances that are left\n" +
			"stay. `pando daemons restart` restarts Pando's own daemons on this machine.",
		Example: "  pando restart website --wait\n  pando restart website website-7k3fq\n" +
			"  pando restart website --cancel",
		Args: cobra.MaximumNArgs(2), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("restart: name a service: `pando restart SERVICE [INSTANCE]` replaces its " +
					"instances; `pando daemons restart` restarts Pando's own daemons on this machine")
			}
			key, instance, err := console.TargetOf(c.Context(), o, args[0])
			if err != nil {
				return err
			}
			if ask.Instance = instance; len(args) == 2 {
				ask.Instance = pando.InstanceID(args[1])
			}
			return o.SuggestService(c.Context(), key, restartService(c.Context(), o, key, ask))
		},
	})
	c.Flags().BoolVar(&ask.Cancel, "cancel", false, "end the restart in progress")
	return o.Out.Flag(c)
}

func restartService(ctx context.Context, o *console.Console, key pando.ServiceKey, ask pando.RestartAsk) error {
	st, err := o.Client.Restart(ctx, key, ask)
	if err == nil && o.Wait {
		st, err = o.Until(ctx, key, o.Progress(st), restarted(st))
	}
	if err != nil {
		return err
	}
	return o.Out.Show(st, func(w io.Writer) {
		switch {
		case ask.Cancel:
			fmt.Fprintf(w, "%s: no restart is in progress now\n", key)
		case o.Wait:
			fmt.Fprintf(w, "%s is restarted: %d in rotation\n", key, st.InRotation)
		case ask.Instance != "":
			fmt.Fprintf(w, "%s: %s is being replaced; `pando ps` shows it\n", key, ask.Instance)
		default:
			fmt.Fprintf(w, "%s: its instances are being replaced; `pando ps` shows them\n", key)
		}
	})
}

// restarted returns a test whether a restart is over. A status that is older than the answer to the
// request, of a server that is behind, proves nothing.
func restarted(asked pando.ServiceStatus) func(pando.ServiceStatus) (bool, error) {
	return func(st pando.ServiceStatus) (bool, error) {
		if st.Removing {
			return false, fmt.Errorf("%w: %s is being removed", pando.ErrRefused, st.ServiceKey)
		}
		return st.Version >= asked.Version && st.Renew == nil && st.Phase == pando.ServiceServing, nil
	}
}
