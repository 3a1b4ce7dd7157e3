package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api/lifeline"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/cgroup"
	"pando.run/pando/driver/kernel"
	"pando.run/pando/driver/ovs"
	"pando.run/pando/driver/wall"
)

// Doctor returns `pando doctor`. It reports whether Pando can run on this machine, and its
// limitations here.
func Doctor(o *console.Console) *cobra.Command {
	var data, steer, run string
	c := &cobra.Command{
		Use: "doctor", Short: "check this machine, and print how to mend it",
		Long: "Try each kernel feature that Pando needs, and leave nothing behind. For each missing\n" +
			"feature, print its cost and how to mend it. If Pando runs here, also print the BGP\n" +
			"sessions that are down, and the hosts whose clocks differ. The exit code is 11 if\n" +
			"Pando cannot run here.",
		Example: "  pando doctor\n  pando doctor --steer ovs\n" +
			"  pando doctor -o json | jq '.checks[] | select(.state != \"ok\")'",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all := kernel.Examine(c.Context(), kernel.Config{
				DataDir: data, CgroupRoot: cgroup.Root, Clock: wall.Clock{},
			})
			if strings.HasPrefix(steer, "ovs") {
				all = append(all, openVSwitch(run))
			}
			all = append(all, snapshotFinding())
			all = append(all, ofCluster(c.Context(), o)...)
			report := struct {
				Fit    bool             `json:"fit"`
				Checks []kernel.Finding `json:"checks"`
			}{kernel.Fit(all), all}
			if err := o.Out.Show(report, func(w io.Writer) { findings(w, all) }); err != nil {
				return err
			}
			if err := c.Context().Err(); err != nil {
				return err
			}
			if !report.Fit {
				return cli.Code(cli.CodeOf(pando.ErrUnsupported))
			}
			return nil
		},
	}
	c.Flags().StringVar(&data, "data-dir", "/var/lib/pando", "folder of the store")
	c.Flags().StringVar(&steer, "steer", "ebpf", "also check the needs of `pando up --steer`")
	c.Flags().StringVar(&run, "ovs-run", ovs.RunDir, "folder with the sockets of Open vSwitch")
	return o.Out.Flag(c)
}

// ofCluster returns the findings about BGP sessions and clocks, if Pando runs here. Without an answer
// of the daemons, they are not known.
func ofCluster(ctx context.Context, o *console.Console) []kernel.Finding {
	within, cancel := context.WithTimeout(ctx, clusterWait)
	defer cancel()
	all, err := o.Client.Hosts(within)
	switch {
	case err == nil:
		return append(sessionFindings(all), clocks(all)...)
	case within.Err() != nil && ctx.Err() == nil, errors.As(err, new(lifeline.Silence)):
		return []kernel.Finding{{Name: "the cluster", State: kernel.Missing,
			Found: fmt.Sprintf("no answer of the daemons here within %s", clusterWait),
			Costs: "the BGP sessions and the clocks of the hosts are not known",
			Mend:  "`pando status` names the daemon that does not answer"}}
	}
	return nil // Pando does not run here
}

// clocks returns a finding for each host whose clock differs from the server's.
func clocks(all []pando.HostStatus) (out []kernel.Finding) {
	for _, text := range skewed(all) {
		out = append(out, kernel.Finding{Name: "clocks of the cluster", State: kernel.Missing, Found: text,
			Costs: "its certificates, tokens, schedules and the times in its logs are off by that",
			Mend:  "set the clock there: `timedatectl set-ntp true`"})
	}
	return out
}

// clusterWait is how long `pando doctor` waits for the hosts. No daemon needs to run.
const clusterWait = 3 * time.Second

// openVSwitch is the finding about the switch of `pando up --steer ovs`.
func openVSwitch(run string) kernel.Finding {
	f := kernel.Finding{Name: "Open vSwitch 3.1", State: kernel.OK, Needed: true, Found: "it answers"}
	if err := ovs.Missing(run); err != nil {
		f.State, f.Found = kernel.Missing, err.Error()
		f.Costs = "`pando up --steer ovs` does not start"
		f.Mend = "follow the hint above, or steer by ebpf"
	}
	return f
}

// snapshotFinding reports whether this machine can make snapshots.
func snapshotFinding() kernel.Finding {
	t := cli.Freezer()
	f := kernel.Finding{Name: "CRIU 4.2 (snapshots)", State: kernel.OK, Found: t.Root}
	if err := t.Missing(); err != nil {
		f.State, f.Found = kernel.Missing, "not in "+t.Root
		f.Costs = "no `pando snapshot`, `restore --from` and `migrate` on this host"
		f.Mend = "deploy/criu " + t.Root + " unpacks it from Debian, without installing it; or name a " +
			"folder in PANDO_CRIU"
	}
	return f
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
				state, needed = "MISSING", append(needed, cli.Clean(f.Name))
			}
		}
		rows = append(rows, console.Row(state, f.Name, f.Found))
		if f.Costs != "" {
			rows = append(rows, "\t  costs\t"+cli.Clean(f.Costs), "\t  mend\t"+cli.Clean(f.Mend))
		}
	}
	cli.Columns(w, rows...)
	fmt.Fprintln(w)
	switch {
	case needed != nil:
		fmt.Fprintf(w, "Pando cannot run here without: %s.\n", strings.Join(needed, ", "))
	case missing > 0:
		fmt.Fprintf(w, "Pando runs here, at the costs above.\n")
	default:
		fmt.Fprintln(w, "Pando runs here, with every feature.")
	}
}
