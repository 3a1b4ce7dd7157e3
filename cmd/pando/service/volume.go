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

// Volume returns `pando volume`.
func Volume(o *console.Console) *cobra.Command {
	c := &cobra.Command{
		Use: "volume", Short: "list, inspect and delete volumes",
		Long: "Look after the volumes on all hosts. They outlive their instances and their service:\n" +
			"`pando rm` keeps them, and a later deploy of the service starts on their host.",
		Example: "  pando volume ls\n  pando volume rm db data",
	}
	c.AddCommand(volumeList(o), volumeInspect(o), volumeRemove(o))
	return c
}

// ofVolumes makes a command about the volumes of a service. The service may be removed.
func ofVolumes(
	c *cobra.Command, args cobra.PositionalArgs,
	run func(ctx context.Context, s pando.ServiceKey, args []string) error,
) *cobra.Command {
	c.Args = args
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return run(c.Context(), pando.ServiceKey{}, nil)
		}
		key, err := pando.ParseServiceKey(args[0])
		if err != nil {
			return err
		}
		return run(c.Context(), key, args[1:])
	}
	return c
}

func volumeList(o *console.Console) *cobra.Command {
	var sizes bool
	c := ofVolumes(&cobra.Command{
		Use: "ls [SERVICE]", Short: "list the volumes on all hosts",
		Long:    "List the volumes on all hosts, also those of removed services.",
		Example: "  pando volume ls\n  pando volume ls db --sizes",
	}, cobra.MaximumNArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		return showVolumes(ctx, o, pando.VolumeQuery{Service: key, Measure: sizes})
	})
	c.Flags().BoolVar(&sizes, "sizes", false, "also sizes: every file is counted")
	return o.Out.Flag(c)
}

func volumeInspect(o *console.Console) *cobra.Command {
	return o.Out.Flag(ofVolumes(&cobra.Command{
		Use: "inspect SERVICE [VOLUME]", Short: "show the folders and sizes of volumes",
		Long:    "Show where the volumes of a service are, with their size and their owner.",
		Example: "  pando volume inspect db\n  pando volume inspect db data -o json",
	}, cobra.RangeArgs(1, 2), func(
		ctx context.Context, key pando.ServiceKey, args []string,
	) error {
		q := pando.VolumeQuery{Service: key, Measure: true}
		if len(args) > 0 {
			q.Name = args[0]
		}
		all, err := o.Client.Volumes(ctx, q)
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("volumes of %s: %w; `pando volume ls` lists all volumes", key,
				pando.ErrNotFound)
		}
		if err != nil {
			return err
		}
		return o.Out.Show(all, func(w io.Writer) {
			for _, v := range all {
				inspected(w, v)
			}
		})
	}))
}

func volumeRemove(o *console.Console) *cobra.Command {
	return o.Out.Flag(ofVolumes(&cobra.Command{
		Use: "rm SERVICE VOLUME", Short: "delete a volume with its files",
		Long: "Delete a volume of a removed service, or one that its spec lacks, with all its files.\n" +
			"Nothing brings them back.",
		Example: "  pando rm db --wait && pando volume rm db data",
	}, cobra.ExactArgs(2), func(ctx context.Context, key pando.ServiceKey, args []string) error {
		if err := o.Client.RemoveVolume(ctx, key, args[0]); err != nil {
			return err
		}
		done := struct {
			Service pando.ServiceKey `json:"service"`
			Volume  string           `json:"volume"`
		}{key, args[0]}
		return o.Out.Show(done, func(w io.Writer) {
			fmt.Fprintf(w, "volume %s of %s is deleted\n", cli.Clean(args[0]), key)
		})
	}))
}

// showVolumes prints the volumes that a query chooses.
func showVolumes(ctx context.Context, o *console.Console, q pando.VolumeQuery) error {
	all, err := o.Client.Volumes(ctx, q)
	if err == nil && len(all) == 0 {
		err = exists(ctx, o, q.Service)
	}
	if err != nil {
		return err
	}
	return o.Out.Show(all, func(w io.Writer) {
		rows := []string{console.Row("SERVICE", "VOLUME", "PART", "HOST", "SIZE", "INSTANCES")}
		var missing []string
		for _, v := range all {
			if v.Missing != "" {
				missing = append(missing, v.Missing)
				continue
			}
			rows = append(rows, console.Row(v.Service, v.Name, v.Part, v.Host, volumeSize(v, q.Measure),
				holdersOf(v)))
		}
		if len(rows) == 1 {
			fmt.Fprintln(w, "no volumes")
		} else {
			cli.Columns(w, rows...)
		}
		for _, m := range missing {
			fmt.Fprintln(w, cli.Clean(m))
		}
	})
}

func volumeSize(v pando.KeptVolume, measured bool) string {
	switch {
	case !measured:
		return "-"
	case v.Partial:
		return "over " + console.Bytes(v.Bytes)
	}
	return console.Bytes(v.Bytes)
}

func holdersOf(v pando.KeptVolume) string {
	if len(v.Instances) == 0 {
		return "-"
	}
	text := string(v.Instances[0])
	if more := len(v.Instances) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// inspected prints one folder of a volume.
func inspected(w io.Writer, v pando.KeptVolume) {
	if v.Missing != "" {
		fmt.Fprintln(w, cli.Clean(v.Missing))
		return
	}
	fmt.Fprintf(w, "%s %s %s\n", v.Service, cli.Clean(v.Name), cli.Clean(v.Part))
	fmt.Fprintf(w, "  host       %s\n  folder     %s\n", v.Host, cli.Clean(v.Path))
	fmt.Fprintf(w, "  size       %s in %d files\n", volumeSize(v, true), v.Files)
	fmt.Fprintf(w, "  owner      uid %d\n  instances  %s\n", v.UID, holdersOf(v))
}
