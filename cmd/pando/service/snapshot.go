package service

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Snapshot returns `pando snapshot`.
func Snapshot(o *console.Console) *cobra.Command {
	var plain bool
	c := &cobra.Command{
		Use: "snapshot SERVICE[/INSTANCE]", Short: "store a running instance, to continue it later",
		Long: "Store the processes of an instance with their memory, and its files in memory. The\n" +
			"instance stops for a moment and continues. `pando restore SERVICE --from SNAPSHOT`\n" +
			"starts one more instance from there. Files on disk and in volumes are not part of it.\n" +
			"Its files are encrypted with the key of the cluster; with --plain they are not.",
		Example: "  pando snapshot game\n  pando snapshot game/game-7k3fq\n" +
			"  pando restore game --from 3f9a02c1be77",
		Args: cobra.ExactArgs(1), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			key, instance, err := console.TargetOf(c.Context(), o, args[0])
			if err != nil {
				return err
			}
			st, err := api.SnapshotsOf(o.Client).Take(c.Context(), key,
				pando.SnapshotAsk{Instance: instance, Plain: plain})
			if err != nil {
				return o.SuggestService(c.Context(), key, err)
			}
			return o.Out.Show(st, func(w io.Writer) {
				how := ""
				if st.Encrypted {
					how = " encrypted"
				}
				fmt.Fprintf(w, "snapshot %s of %s on %s: %s%s; it stood still for %.0f ms\n",
					console.ShortDigest(st.Digest), st.Instance, st.Host, console.Bytes(st.Bytes), how,
					st.StoppedSeconds*1000)
				fmt.Fprintf(w, "next: pando restore %s --from %s\n", key.Name, console.ShortDigest(st.Digest))
			})
		},
	}
	c.Flags().BoolVar(&plain, "plain", false, "do not encrypt its files")
	c.AddCommand(snapshotList(o), snapshotRemove(o))
	return o.Out.Flag(c)
}

func snapshotList(o *console.Console) *cobra.Command {
	return o.Out.Flag(ofVolumes(&cobra.Command{
		Use: "ls [SERVICE]", Short: "list the snapshots on all hosts",
		Long: "List the snapshots on all hosts, the newest first. A host keeps the newest five of a\n" +
			"service, and those that new instances continue (`replicate: {from: snapshot}`).",
		Example: "  pando snapshot ls\n  pando snapshot ls game",
	}, cobra.MaximumNArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		all, err := api.SnapshotsOf(o.Client).All(ctx, key)
		if err == nil && len(all) == 0 {
			err = exists(ctx, o, key)
		}
		if err != nil {
			return err
		}
		return o.Out.Show(all, func(w io.Writer) {
			rows := []string{console.Row("SNAPSHOT", "SERVICE", "INSTANCE", "REVISION", "HOST", "SIZE", "AT",
				"USE")}
			for _, s := range all {
				if s.Missing != "" {
					fmt.Fprintln(w, cli.Clean(s.Missing))
					continue
				}
				use := "restore"
				if s.Seed {
					use = "new instances"
				}
				if s.Encrypted {
					use += ", encrypted"
				}
				rows = append(rows, console.Row(console.ShortDigest(s.Digest), s.Service, s.Instance, s.Revision, s.Host,
					console.Bytes(s.Bytes), s.At.Local().Format("2006-01-02 15:04:05"), use))
			}
			if len(rows) == 1 {
				fmt.Fprintln(w, "no snapshots")
				return
			}
			cli.Columns(w, rows...)
		})
	}))
}

func snapshotRemove(o *console.Console) *cobra.Command {
	return o.Out.Flag(ofVolumes(&cobra.Command{
		Use: "rm SERVICE SNAPSHOT", Short: "delete a snapshot on every host",
		Example: "  pando snapshot rm game 3f9a02c1be77",
	}, cobra.ExactArgs(2), func(ctx context.Context, key pando.ServiceKey, args []string) error {
		if err := api.SnapshotsOf(o.Client).Remove(ctx, key, args[0]); err != nil {
			return err
		}
		done := struct {
			Service  pando.ServiceKey `json:"service"`
			Snapshot string           `json:"snapshot"`
		}{key, args[0]}
		return o.Out.Show(done, func(w io.Writer) {
			fmt.Fprintf(w, "snapshot %s of %s is deleted\n", cli.Clean(args[0]), key)
		})
	}))
}

// RestoreFrom adds the restore of an instance to `pando restore`: the argument is then a service.
func RestoreFrom(o *console.Console, c *cobra.Command) *cobra.Command {
	var from string
	backup := c.RunE
	c.Use = "restore FILE | SERVICE --from SNAPSHOT"
	c.Short = "bring back the cluster, or an instance from a snapshot"
	c.Long += "\n\nWith --from, start one more instance of a service, which continues from a " +
		"snapshot\n(see `pando snapshot`). It counts against `scale.max`."
	c.Example += "\n  pando restore game --from 3f9a02c1be77"
	c.Flags().StringVar(&from, "from", "", "continue an instance from this snapshot")
	c.RunE = func(c *cobra.Command, args []string) error {
		if from == "" {
			return backup(c, args)
		}
		key, err := pando.ParseServiceKey(args[0])
		if err != nil {
			return err
		}
		i, err := api.SnapshotsOf(o.Client).Restore(c.Context(), key, from)
		if err != nil {
			return o.SuggestService(c.Context(), key, err)
		}
		return o.Out.Show(i, func(w io.Writer) {
			fmt.Fprintf(w, "%s continues snapshot %s on %s; `pando ps %s` shows it\n", i.Instance,
				console.ShortDigest(i.From), i.Host, key.Name)
		})
	}
	return c
}
