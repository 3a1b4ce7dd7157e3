package tenant

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// tenantToken returns `pando tenant token`.
func tenantToken(o *console.Console) *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "make, list and remove tokens of tenants",
		Long: "Look after the tokens of tenants. By a token, a caller from outside the hosts uses the\n" +
			"API for the services of one tenant, and for nothing else.",
		Example: "  pando tenant token add acme ci --may scale,deploy --for 2160h\n" +
			"  pando tenant token ls",
	}
	c.AddCommand(tokenAdd(o), tokenList(o), tokenRemove(o))
	return c
}

func tokenAdd(o *console.Console) *cobra.Command {
	var may []string
	var keep time.Duration
	var replace bool
	c := &cobra.Command{
		Use: "add TENANT NAME", Short: "make a token and print it once",
		Long: "Make a token of a tenant, and print it. The cluster stores its hash alone, so it is\n" +
			"never printed again. Every token reads services, logs and secrets' names of its tenant.\n" +
			"--may adds rights: scale; deploy (specs with an image and nothing of the hosts); exec;\n" +
			"host (specs with programs, folders and users of the hosts).",
		Example: "  pando tenant token add acme ci --may scale,deploy\n" +
			"  pando tenant token add acme ci --may scale --for 24h --replace",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			change := pando.TokenChange{ForSeconds: keep.Seconds(), Replace: replace}
			for _, word := range may {
				change.May = append(change.May, pando.TokenRight(word))
			}
			k := pando.TokenKey{Tenant: pando.Tenant(args[0]), Name: args[1]}
			is, err := api.TenantClient{Client: o.Client}.IssueToken(c.Context(), k, change)
			if err != nil {
				return err
			}
			quota, err := quotaOf(c.Context(), o, k.Tenant)
			if err != nil {
				return err
			}
			return o.Out.Show(is, func(w io.Writer) {
				fmt.Fprintf(w, "%s\nuntil %s:\n  export PANDO_API=%s\n  export PANDO_TOKEN=%s\n",
					quota, is.Until.Local().Format("2006-01-02 15:04"), is.API, is.Token)
			})
		},
	}
	c.Flags().StringSliceVar(&may, "may", nil, "rights beyond reading: scale, deploy, exec, host")
	cli.DurationVar(c.Flags(), &keep, "for", 90*24*time.Hour, "how long it is valid")
	c.Flags().BoolVar(&replace, "replace", false, "end the token of this name first")
	return o.Out.Flag(c)
}

// quotaOf returns the quota of a tenant in words, and where it comes from.
func quotaOf(ctx context.Context, o *console.Console, t pando.Tenant) (string, error) {
	all, err := api.TenantClient{Client: o.Client}.Tenants(ctx)
	if err != nil {
		return "", err
	}
	for _, one := range all {
		if one.Tenant == t && !one.At.IsZero() {
			return fmt.Sprintf("tenant %s has the quota of its record: %s", t, quotaText(one.Quota)), nil
		}
	}
	if t == pando.DefaultTenant {
		return "tenant default has no quota", nil
	}
	return fmt.Sprintf("tenant %s has no record, so the default quota holds: %s (`pando tenant set %[1]s` "+
		"changes it)", t, quotaText(pando.DefaultQuota)), nil
}

func tokenList(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "ls [TENANT]", Short: "list the tokens of tenants", Example: "  pando tenant token ls",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			all, err := api.TenantClient{Client: o.Client}.Tokens(c.Context())
			if err != nil {
				return err
			}
			if len(args) > 0 {
				var of []pando.TokenStatus
				for _, t := range all {
					if string(t.Tenant) == args[0] {
						of = append(of, t)
					}
				}
				all = of
			}
			return o.Out.Show(all, func(w io.Writer) {
				rows := []string{console.Row("TENANT", "TOKEN", "MAY", "UNTIL", "MADE BY")}
				for _, t := range all {
					until := t.Until.Local().Format("2006-01-02 15:04")
					if !time.Now().Before(t.Until) {
						until = "ended"
					}
					rows = append(rows, console.Row(t.Tenant, t.Name, pando.Token{May: t.May}.Text(), until,
						cli.Clean(t.By)))
				}
				cli.Columns(w, rows...)
			})
		},
	})
}

func tokenRemove(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "rm TENANT NAME", Short: "end a token", Example: "  pando tenant token rm acme ci",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			k := pando.TokenKey{Tenant: pando.Tenant(args[0]), Name: args[1]}
			if err := (api.TenantClient{Client: o.Client}).RemoveToken(c.Context(), k); err != nil {
				return err
			}
			return o.Out.Show(k, func(w io.Writer) { fmt.Fprintf(w, "token %s is removed\n", k) })
		},
	})
}
