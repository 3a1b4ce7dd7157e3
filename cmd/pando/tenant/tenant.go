// Package tenant holds the commands about tenants: quotas, tokens, secrets, bills and the audit.
package tenant

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Tenant returns `pando tenant`.
func Tenant(o *console.Console) *cobra.Command {
	c := &cobra.Command{
		Use: "tenant", Short: "set, list and remove tenants",
		Long: "Look after the tenants and their quotas. A spec names its tenant in `tenant`. A\n" +
			"tenant without a record has a default quota: " + quotaText(pando.DefaultQuota) + ".",
		Example: "  pando tenant set acme --instances 50 --cpus 8 --memory 16G\n  pando tenant ls",
	}
	c.AddCommand(tenantSet(o), tenantList(o), tenantShow(o), tenantRemove(o), tenantToken(o))
	return c
}

// quotaFlags are the words of `pando tenant set`. A flag that is not given changes nothing.
type quotaFlags struct {
	instances, services int
	cpus                float64
	memory, disk        string
	publish, vip        string
}

func (f quotaFlags) change(c *cobra.Command) (out pando.AccountChange, err error) {
	given := c.Flags().Changed
	if given("instances") {
		out.Instances = &f.instances
	}
	if given("services") {
		out.Services = &f.services
	}
	if given("cpus") {
		out.CPUs = &f.cpus
	}
	if given("vips") {
		out.VIPs = &f.vip
	}
	if given("memory") {
		n, err := byteCount(f.memory)
		if err != nil {
			return out, err
		}
		out.MemoryBytes = &n
	}
	if given("disk") {
		n, err := byteCount(f.disk)
		if err != nil {
			return out, err
		}
		out.DiskBytes = &n
	}
	if given("publish-rate") {
		n, err := strconv.ParseFloat(strings.TrimSuffix(f.publish, "/s"), 64)
		if err != nil {
			return out, fmt.Errorf("%w: --publish-rate %q: want a number a second, such as 5/s",
				pando.ErrInvalid, f.publish)
		}
		out.PublishPerSecond = &n
	}
	return out, nil
}

// byteCount reads a size such as 512M or 16G, in units of 1024.
func byteCount(s string) (int64, error) {
	number := strings.TrimRight(strings.ToLower(s), "bkmgt")
	n, err := strconv.ParseFloat(number, 64)
	shift, ok := map[string]int{"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}[strings.ToLower(
		s[len(number):])]
	if n *= float64(int64(1) << shift); err != nil || !ok || !(n >= 0 && n <= 1<<50) {
		return 0, fmt.Errorf("%w: the size %q: want bytes, or a number with k, m, g or t, such as 16G",
			pando.ErrInvalid, s)
	}
	return int64(n), nil
}

func tenantSet(o *console.Console) *cobra.Command {
	var f quotaFlags
	c := &cobra.Command{
		Use: "set TENANT", Short: "create a tenant, or change its quotas",
		Long: "Create a tenant, or change the given quotas. 0 lifts a quota. Running instances stay\n" +
			"under a smaller quota.",
		Example: "  pando tenant set acme --instances 50 --cpus 8 --memory 16G --publish-rate 5/s\n" +
			"  pando tenant set acme --cpus 0",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			change, err := f.change(c)
			if err != nil {
				return err
			}
			to := api.TenantClient{Client: o.Client}
			st, err := to.SetTenant(c.Context(), pando.Tenant(args[0]), change)
			if err != nil {
				return err
			}
			return o.Out.Show(st, func(w io.Writer) { showTenants(w, st) })
		},
	}
	c.Flags().IntVar(&f.instances, "instances", 0, "most instances (0 = no limit)")
	c.Flags().IntVar(&f.services, "services", 0, "most services (0 = a quarter of the cluster's)")
	c.Flags().Float64Var(&f.cpus, "cpus", 0, "most processors, by resources.cpus (0 = no limit)")
	c.Flags().StringVar(&f.memory, "memory", "0", "most memory, by resources.memory (0 = no limit)")
	c.Flags().StringVar(&f.disk, "disk", "0", "most disk, by the sizes of volumes (0 = no limit)")
	c.Flags().StringVar(&f.publish, "publish-rate", "0", "most changes of tables a second, as 5/s")
	c.Flags().StringVar(&f.vip, "vips", "", "range of the VIPs of its services (\"\" = any)")
	return o.Out.Flag(c)
}

// showTenants prints tenants with their use and their quotas.
func showTenants(w io.Writer, all ...pando.TenantStatus) {
	rows := []string{console.Row("TENANT", "SERVICES", "INSTANCES", "CPUS", "MEMORY", "DISK", "CHANGES/S", "VIPS")}
	for _, t := range all {
		q, vips := t.Quota, "any"
		if t.VIPs.IsValid() {
			vips = t.VIPs.String()
		}
		rows = append(rows, console.Row(t.Tenant,
			ofQuota(fmt.Sprint(t.Use.Services), fmt.Sprint(q.Services), q.Services == 0),
			ofQuota(fmt.Sprint(t.Use.Instances), fmt.Sprint(q.Instances), q.Instances == 0),
			ofQuota(fmt.Sprintf("%g", t.Use.CPUs), fmt.Sprintf("%g", q.CPUs), q.CPUs == 0),
			ofQuota(console.Bytes(t.Use.MemoryBytes), console.Bytes(q.MemoryBytes), q.MemoryBytes == 0),
			ofQuota(console.Bytes(t.Use.DiskBytes), console.Bytes(q.DiskBytes), q.DiskBytes == 0),
			ofQuota(fmt.Sprint(t.Use.Published), fmt.Sprintf("%g", q.PublishPerSecond),
				q.PublishPerSecond == 0), vips))
	}
	cli.Columns(w, rows...)
}

// quotaText returns the limits of a quota in words.
func quotaText(q pando.Quota) string {
	var out []string
	add := func(limits bool, format string, args ...any) {
		if limits {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(q.Instances > 0, "%d instances", q.Instances)
	add(q.Services > 0, "%d services", q.Services)
	add(q.CPUs > 0, "%g processors", q.CPUs)
	add(q.MemoryBytes > 0, "%s of memory", console.Bytes(q.MemoryBytes))
	add(q.DiskBytes > 0, "%s of disk", console.Bytes(q.DiskBytes))
	add(q.PublishPerSecond > 0, "%g changes a second", q.PublishPerSecond)
	if len(out) == 0 {
		return "no limit"
	}
	return strings.Join(out, ", ")
}

// ofQuota returns "3/50", or "3" without a quota.
func ofQuota(is, most string, none bool) string {
	if none {
		return is
	}
	return is + "/" + most
}

func tenantList(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "ls", Short: "list the tenants", Example: "  pando tenant ls", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := api.TenantClient{Client: o.Client}.Tenants(c.Context())
			if err != nil {
				return err
			}
			return o.Out.Show(all, func(w io.Writer) { showTenants(w, all...) })
		},
	})
}

func tenantShow(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "show TENANT", Short: "show one tenant with its use and its quotas",
		Example: "  pando tenant show acme", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			all, err := api.TenantClient{Client: o.Client}.Tenants(c.Context())
			if err != nil {
				return err
			}
			for _, t := range all {
				if string(t.Tenant) == args[0] {
					return o.Out.Show(t, func(w io.Writer) { showTenants(w, t) })
				}
			}
			return fmt.Errorf("tenant %s: %w; `pando tenant ls` lists the tenants", args[0],
				pando.ErrNotFound)
		},
	})
}

func tenantRemove(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "rm TENANT", Short: "remove a tenant without services",
		Example: "  pando tenant rm acme", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			to := api.TenantClient{Client: o.Client}
			if err := to.RemoveTenant(c.Context(), pando.Tenant(args[0])); err != nil {
				return err
			}
			return o.Out.Show(args[0], func(w io.Writer) {
				fmt.Fprintf(w, "tenant %s is removed\n", args[0])
			})
		},
	})
}
