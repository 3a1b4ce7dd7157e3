package tenant

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Bill returns `pando bill`.
func Bill(o *console.Console) *cobra.Command {
	var since string
	var table bool
	var q pando.BillQuery
	c := &cobra.Command{
		Use: "bill", Short: "list the counted work of tenants",
		Long: "List the work of tenants: the time of their instances, their processor time, the bytes\n" +
			"of their links, and the decisions about their services. Without --by, there is one line for\n" +
			"each tenant. Hours are kept for 3 days, days for 100 days and months for 10 years.\n" +
			"With a token of a tenant, the list is that of the tenant.",
		Example: "  pando bill\n  pando bill --tenant acme --by day --since 2026-01-01\n" +
			"  pando bill --by month --csv >bill.csv",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if since != "" {
				if q.Since, err = console.ParseTime(since, time.Now()); err != nil {
					return err
				}
			}
			lines, err := api.Bills(c.Context(), o.Client, q)
			if err != nil {
				return err
			}
			return o.Out.Show(lines, func(w io.Writer) {
				if table {
					billTable(w, lines)
					return
				}
				billColumns(w, lines)
			})
		},
	}
	c.Flags().StringVar((*string)(&q.Tenant), "tenant", "", "only this tenant")
	c.Flags().StringVar(&since, "since", "",
		"from this time or for this long, as 2h or 2026-01-31 (this month)")
	c.Flags().StringVar((*string)(&q.By), "by", "", "one line for each: hour, day or month")
	c.Flags().BoolVar(&table, "csv", false, "print comma-separated values, in seconds and bytes")
	return o.Out.Flag(c)
}

// billColumns prints lines for people.
func billColumns(w io.Writer, lines []pando.BillLine) {
	if len(lines) == 0 {
		fmt.Fprintln(w, "no work")
		return
	}
	rows := []string{console.Row("TENANT", "FROM", "TO", "INSTANCE HOURS", "CPU HOURS", "IN", "OUT",
		"DECISIONS")}
	for _, l := range lines {
		rows = append(rows, console.Row(l.Tenant, stamp(l.From), stamp(l.To),
			fmt.Sprintf("%.3f", l.InstanceSeconds/3600), fmt.Sprintf("%.4f", l.CPUSeconds/3600),
			console.Bytes(int64(l.BytesIn)), console.Bytes(int64(l.BytesOut)), l.Decisions))
	}
	cli.Columns(w, rows...)
}

// billTable prints lines as CSV with a header.
func billTable(w io.Writer, lines []pando.BillLine) {
	to := csv.NewWriter(w)
	defer to.Flush()
	_ = to.Write([]string{"tenant", "from", "to", "instance_seconds", "cpu_seconds", "bytes_in",
		"bytes_out", "decisions"})
	seconds := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	bytes := func(v uint64) string { return strconv.FormatUint(v, 10) }
	for _, l := range lines { // the writer keeps the first error of w, which Show has too
		_ = to.Write([]string{string(l.Tenant), l.From.UTC().Format(time.RFC3339),
			l.To.UTC().Format(time.RFC3339), seconds(l.InstanceSeconds), seconds(l.CPUSeconds),
			bytes(l.BytesIn), bytes(l.BytesOut), bytes(l.Decisions)})
	}
}
