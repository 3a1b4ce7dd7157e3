package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/console"
)

// Migrate returns `pando migrate`.
func Migrate(o *console.Console) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "migrate INSTANCE", Short: "move an instance to another host",
		Long: "Move a running instance to another host, with its memory, its files in memory and its\n" +
			"connections. The program stops for a moment, and no connection ends. If a step fails, the\n" +
			"instance continues where it was. Files on disk are not part of a move.",
		Example: "  pando migrate game-7k3fq --to host2\n  pando migrate game   # its first instance",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			key, st, err := migrate(c.Context(), o, args[0], pando.HostName(to))
			if err != nil {
				return o.SuggestService(c.Context(), key, err)
			}
			return o.Out.Show(st, func(w io.Writer) {
				fmt.Fprintf(w, "%s moved from %s to %s: %s; it was stopped for %.0f ms\n", st.Instance,
					st.From, st.To, console.Bytes(st.Bytes), st.StoppedSeconds*1000)
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "the host, else the best one")
	return o.Out.Flag(c)
}

// migrate asks for the move of an instance, or of the first one of a service.
func migrate(
	ctx context.Context, o *console.Console, name string, to pando.HostName,
) (pando.ServiceKey, pando.MoveStatus, error) {
	key, instance, err := console.TargetOf(ctx, o, name)
	if err != nil {
		return key, pando.MoveStatus{}, err
	}
	st, err := api.SnapshotsOf(o.Client).Migrate(ctx, key, instance, to)
	end := strings.LastIndexByte(string(key.Name), '-')
	if instance == "" && end > 0 && errors.Is(err, pando.ErrNotFound) {
		of := pando.ServiceKey{Tenant: key.Tenant, Name: key.Name[:end]}
		st2, err2 := api.SnapshotsOf(o.Client).Migrate(ctx, of, pando.InstanceID(key.Name), to)
		if !errors.Is(err2, pando.ErrNotFound) {
			return of, st2, err2
		}
	}
	return key, st, err
}
