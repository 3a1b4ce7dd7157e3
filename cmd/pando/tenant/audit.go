package tenant

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Audit returns `pando audit`.
func Audit(o *console.Console) *cobra.Command {
	var since string
	var follow, given bool
	var q pando.DeedQuery
	c := &cobra.Command{
		Use: "audit", Short: "list changes with their callers",
		Long: "List the requests that changed something or reached into an instance, oldest first.\n" +
			"A caller is an operator on a host (`host NAME`), a token of a tenant, or an agent that\n" +
			"took secrets. The name in brackets is the caller's own word.\n" +
			"The newest 10,000 are kept; the first line counts older ones. With a token of a tenant,\n" +
			"the list is that of the tenant.\n" +
			"With --grants, list the grants of hosts to instances (`pando hosts allow`).",
		Example: "  pando audit --since 24h\n  pando audit --tenant acme -o json\n" +
			"  pando audit -f --actor token\n  pando audit --grants",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if since != "" {
				if q.Since, err = console.ParseTime(since, time.Now()); err != nil {
					return err
				}
			}
			if given {
				return grants(c.Context(), o)
			}
			if follow {
				return console.WithoutEnd(c.Context(), followAudit(c.Context(), o, q))
			}
			a, err := api.Audit(c.Context(), o.Client, q)
			if err != nil {
				return err
			}
			return o.Out.Show(a, func(w io.Writer) { deeds(w, a) })
		},
	}
	c.Flags().StringVar(&since, "since", "", "from this time or for this long, as 2h or 2026-01-31")
	c.Flags().StringVar(&q.Source, "actor", "", "only callers with this in their name")
	c.Flags().StringVar((*string)(&q.Tenant), "tenant", "", "only this tenant and its objects")
	c.Flags().IntVarP(&q.Max, "number", "n", 0, "show the newest N (0 = all)")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print further ones as they happen")
	c.Flags().BoolVar(&given, "grants", false, "list the grants of hosts in place of changes")
	return o.Out.Flag(c)
}

// hostGrant is one grant of a host, with its newest change.
type hostGrant struct {
	Host  pando.HostName `json:"host"`
	Grant pando.Grant    `json:"grant"`
	pando.Granting
}

// grants prints the grants of all hosts, withdrawn ones included.
func grants(ctx context.Context, o *console.Console) error {
	hosts, err := o.Client.Hosts(ctx)
	if err != nil {
		return err
	}
	all := []hostGrant{}
	for _, h := range hosts {
		for _, g := range slices.Sorted(maps.Keys(h.Given)) {
			all = append(all, hostGrant{h.Name, g, h.Given[g]})
		}
	}
	return o.Out.Show(all, func(w io.Writer) {
		if len(all) == 0 {
			fmt.Fprintln(w, "no host gives anything (`pando hosts allow HOST device=NAME`)")
			return
		}
		rows := []string{console.Row("HOST", "GRANT", "GIVEN", "BY", "SINCE")}
		for _, g := range all {
			may := "yes"
			if !g.May {
				may = "no"
			}
			rows = append(rows, console.Row(g.Host, g.Grant, may, g.By, stamp(g.At)))
		}
		cli.Columns(w, rows...)
	})
}

// followAudit prints deeds until ctx ends. An answer may repeat a deed that the caller has.
func followAudit(ctx context.Context, o *console.Console, q pando.DeedQuery) error {
	printed := map[string]string{} // results by id
	for {
		a, err := api.Audit(ctx, o.Client, q)
		if err != nil {
			return err
		}
		var fresh []pando.Deed
		for _, d := range a.Deeds {
			if was, known := printed[d.ID]; !known || was != d.Result {
				printed[d.ID] = d.Result
				fresh = append(fresh, d)
			}
		}
		for _, d := range fresh {
			line := []byte(deedLine(d))
			if o.Out.JSON {
				if line, err = json.Marshal(d); err != nil {
					return err
				}
			}
			if err := o.Out.Print(append(line, '\n')); err != nil {
				return err
			}
		}
		if len(a.Deeds) == 0 {
			clear(printed) // the store revision has passed all of them
		}
		q.After, q.Max, q.Wait = a.Seen, 0, pando.DeedWaitMax
	}
}

// deeds prints the audit, and how much of it is gone.
func deeds(w io.Writer, a pando.Audit) {
	if t := a.Trim; t.Deeds > 0 {
		fmt.Fprintf(w, "%s, the newest of %s, are gone: the audit keeps %d; the files audit.log of the "+
			"servers have more\n", cli.Count(t.Deeds, "line"), stamp(t.Until), pando.DeedsMax)
	}
	if len(a.Deeds) == 0 {
		fmt.Fprintln(w, "no lines")
		return
	}
	rows := []string{console.Row("TIME", "ACTOR", "FROM", "ACTION", "OBJECT", "REV", "RESULT")}
	for _, d := range a.Deeds {
		rows = append(rows, console.Row(cells(d)...))
	}
	cli.Columns(w, rows...)
}

// cells returns the columns of a deed.
func cells(d pando.Deed) []any {
	caller := d.Source
	if d.By != "" && !strings.HasSuffix(d.Source, d.By) {
		caller += " (" + d.By + ")"
	}
	rev, result := "", d.Result
	if d.Revision > 0 {
		rev = fmt.Sprint(d.Revision)
	}
	if d.Detail != "" && result == pando.DeedDone {
		result += ": " + d.Detail
	}
	return []any{stamp(d.At), caller, d.From, d.Verb, d.Object, rev, result}
}

// deedLine returns a deed as a line without a table.
func deedLine(d pando.Deed) string {
	return strings.ReplaceAll(console.Row(cells(d)...), "\t", "  ")
}

// stamp returns a time in the local zone.
func stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }
