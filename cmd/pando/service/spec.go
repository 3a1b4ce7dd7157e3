package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/specfile"
	"pando.run/pando/spec"
)

// Spec returns `pando spec`. Its commands for files need no running pando.
func Spec(o *console.Console) *cobra.Command {
	c := &cobra.Command{Use: "spec", Short: "check spec files, and print their schema",
		Example: "  pando spec check pando.yaml\n  pando spec schema > pando.schema.json"}
	c.AddCommand(specCheck(o), specSchema(o), specShow(o))
	return c
}

func specCheck(o *console.Console) *cobra.Command {
	var f specfile.Flags
	c := o.Out.Flag(&cobra.Command{
		Use: "check FILE…", Short: "print every mistake in spec files and Compose files",
		Example: "  pando spec check pando.yaml\n  pando spec check compose.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			all := []pando.Spec{}
			for _, file := range args {
				specs, err := specfile.Load(c.Context(), o, file, f)
				if err != nil {
					return err
				}
				for _, s := range specs {
					all = append(all, s.WithDefaults())
				}
			}
			return o.Out.Show(all, func(w io.Writer) {
				for _, s := range all {
					fmt.Fprintf(w, "%s is good: %s instances, ports %s\n",
						s.Key(), console.Bounds(s.Scale), none(ports(s.Ports)))
				}
			})
		},
	})
	f.Add(c)
	return c
}

func specSchema(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "schema", Short: "print the JSON Schema of spec files",
		Long: "Print the JSON Schema of spec files. An editor with a YAML language server checks and\n" +
			"completes a file with this first line:\n\n" +
			"  # yaml-language-server: $schema=pando.schema.json",
		Example: "  pando spec schema > pando.schema.json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return o.Out.Show(json.RawMessage(spec.Schema()),
				func(w io.Writer) { _, _ = w.Write(spec.Schema()) })
		},
	})
}

func specShow(o *console.Console) *cobra.Command {
	return o.Out.Flag(o.OfService(&cobra.Command{
		Use: "show SERVICE", Short: "print a service's spec, with defaults and absolute paths",
		Example: "  pando spec show website > pando.yaml",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		st, err := o.Client.Service(ctx, key)
		if err != nil {
			return err
		}
		return o.Out.Show(st.Spec, func(w io.Writer) { _, _ = w.Write(spec.Format(*st.Spec)) })
	}))
}

func none(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
