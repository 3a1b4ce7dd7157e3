package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/driver/cgroup"
	"pando.run/pando/driver/kernel"
	"pando.run/pando/driver/wall"
)

// doctor reports whether Pando can run on this machine, and its limitations here.
func (o *command) doctor() *cobra.Command {
	var data string
	c := &cobra.Command{
		Use: "doctor", Short: "try out what Pando needs of this machine, and say how to mend what is missing",
		Long: "Tries every feature of the kernel that Pando uses by using it once, and leaves nothing behind. What is missing is named with what\n" +
			"it costs and how to mend it. The exit code is 11 when Pando cannot run here.",
		Example: "  pando doctor\n  pando doctor -o json | jq '.checks[] | select(.state != \"ok\")'", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all := kernel.Examine(c.Context(), kernel.Config{DataDir: data, CgroupRoot: cgroup.Root, Clock: wall.Clock{}})
			report := struct {
				Fit    bool             `json:"fit"`
				Checks []kernel.Finding `json:"checks"`
			}{kernel.Fit(all), all}
			if err := o.show(report, func(w io.Writer) { findings(w, all) }); err != nil {
				return err
			}
			if err := c.Context().Err(); err != nil {
				return err
			}
			if !report.Fit {
				return codeError(codeOf(pando.ErrUnsupported))
			}
			return nil
		},
	}
	c.Flags().StringVar(&data, "data-dir", "/var/lib/pando", "where the store would be")
	return c
}

func findings(w io.Writer, all []kernel.Finding) {
	var rows []string
	var needed []string
	missing := 0
	for _, f := range all {
		state := string(f.State)
		if f.State != kernel.OK {
			missing++
			if f.Needed {
				state, needed = "MISSING", append(needed, f.Name)
			}
		}
		rows = append(rows, row(state, f.Name, f.Found))
		if f.Costs != "" {
			rows = append(rows, "\t  costs\t"+f.Costs, "\t  mend\t"+f.Mend)
		}
	}
	columns(w, rows...)
	fmt.Fprintln(w)
	switch {
	case needed != nil:
		fmt.Fprintf(w, "Pando cannot run here without: %s.\n", strings.Join(needed, ", "))
	case missing > 0:
		fmt.Fprintf(w, "Pando runs here, at the costs that are named above.\n")
	default:
		fmt.Fprintln(w, "Pando runs here, with everything that it can use.")
	}
}
