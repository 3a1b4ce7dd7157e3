package service

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/console"
)

// Recover returns `pando recover`.
func Recover(o *console.Console) *cobra.Command {
	var r pando.Recovery
	c := o.OfService(&cobra.Command{
		Use: "recover SERVICE", Short: "start a stateful service by hand",
		Long: "Decide for a stateful service that waits for you. After a crash of all\n" +
			"ordinals, it waits until every position is known. --force-from starts it from one\n" +
			"ordinal, and later writes of the others are lost. --move gives up the volumes of an\n" +
			"ordinal with its lost host, so that it starts anew on another host. Nothing of that\n" +
			"ordinal may run any more: stop the machine first.",
		Example: "  pando recover db --force-from db-2\n  pando recover db --move db-1",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		st, err := api.Recover(ctx, o.Client, key, r)
		if err != nil {
			return err
		}
		return o.Out.Show(st, func(w io.Writer) { whole(w, st, time.Now()) })
	})
	c.Flags().StringVar(&r.ForceFrom, "force-from", "", "ordinal that starts first, such as db-2")
	c.Flags().StringVar(&r.Move, "move", "", "ordinal that starts anew on another host")
	c.MarkFlagsMutuallyExclusive("force-from", "move")
	c.MarkFlagsOneRequired("force-from", "move")
	return o.Out.Flag(c)
}
