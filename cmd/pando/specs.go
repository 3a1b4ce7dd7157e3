package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// spec checks spec files and prints their schema. It does not need a running pando.
func (o *command) spec() *cobra.Command {
	c := &cobra.Command{Use: "spec", Short: "check spec files, and help an editor to write them",
		Example: "  pando spec check pando.yaml\n  pando spec schema > pando.schema.json"}
	c.AddCommand(
		&cobra.Command{
			Use: "check FILE…", Short: "say everything that is wrong in spec files", Example: "  pando spec check pando.yaml", Args: cobra.MinimumNArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				all := []pando.Spec{}
				for _, file := range args {
					specs, err := spec.Load(c.Context(), file)
					if err != nil {
						return err
					}
					for _, s := range specs {
						all = append(all, s.WithDefaults())
					}
				}
				return o.show(all, func(w io.Writer) {
					for _, s := range all {
						fmt.Fprintf(w, "%s is good: %s instances, ports %s\n", s.Key(), bounds(s.Scale), none(ports(s.Ports)))
					}
				})
			},
		},
		&cobra.Command{
			Use: "schema", Short: "print the JSON Schema of spec files",
			Long: "Prints the JSON Schema of spec files. An editor with a YAML language server checks and completes a file whose first line names it:\n\n" +
				"  # yaml-language-server: $schema=pando.schema.json",
			Example: "  pando spec schema > pando.schema.json", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				return o.show(json.RawMessage(spec.Schema()), func(w io.Writer) { _, _ = w.Write(spec.Schema()) })
			},
		},
		o.of(&cobra.Command{Use: "show SERVICE", Short: "print the spec that a service has, with defaults and absolute paths", Example: "  pando spec show website > pando.yaml"},
			cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
				st, err := o.client.Service(ctx, key)
				if err != nil {
					return err
				}
				return o.show(st.Spec, func(w io.Writer) { _, _ = w.Write(spec.Format(*st.Spec)) })
			}))
	return c
}

func none(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
