package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/specfile"
	"pando.run/pando/spec"
)

// version is one line of `pando history`: a revision and the keys that it changed.
type version struct {
	pando.Revision
	Changed []string `json:"changed"` // keys of the spec; null: the revision before is not stored
}

// versions compares each revision with the stored one before it.
func versions(all []pando.Revision) []version {
	out := make([]version, len(all))
	for n, r := range all {
		out[n] = version{Revision: r}
		if n > 0 && all[n-1].Number == r.Number-1 {
			out[n].Changed = spec.Changed(all[n-1].Spec, r.Spec)
		}
	}
	return out
}

// History returns `pando history`.
func History(o *console.Console) *cobra.Command {
	var most int
	c := o.OfService(&cobra.Command{
		Use: "history SERVICE", Short: "list the revisions of a service",
		Long: "List the revisions of a service, newest last: number, state, time, author, the keys\n" +
			"that it changed, and the reason of its state. Pando keeps the newest 20 and those in\n" +
			"use. `pando diff SERVICE REV` prints the lines that changed.",
		Example: "  pando history website\n  pando history website -n 5 -o json",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		all, err := o.Client.Revisions(ctx, key)
		if err != nil {
			return err
		}
		shown := versions(all)
		if most > 0 && len(shown) > most {
			shown = shown[len(shown)-most:]
		}
		return o.Out.Show(shown, func(w io.Writer) { history(w, shown) })
	})
	c.Flags().IntVarP(&most, "number", "n", 0, "show the newest N (0 = all)")
	return o.Out.Flag(c)
}

func history(w io.Writer, all []version) {
	rows := []string{console.Row("REV", "STATE", "WHEN", "BY", "CHANGED", "OUTCOME")}
	for _, v := range all {
		rows = append(rows, console.Row(v.Number, v.State, v.At.Local().Format("2006-01-02 15:04:05"),
			cmp.Or(v.By.Name, string(v.By.Kind)), v.change(), v.Reason))
	}
	cli.Columns(w, rows...)
}

// change returns the change of a revision in words.
func (v version) change() string {
	keys := strings.Join(v.Changed, ", ")
	switch {
	case v.Repeats > 0:
		return fmt.Sprintf("back to %d", v.Repeats)
	case v.Number == 1:
		return "first"
	case v.Changed != nil && keys == "":
		return "nothing"
	case len(v.Changed) > 4:
		return fmt.Sprintf("%s and %d more", strings.Join(v.Changed[:3], ", "), len(v.Changed)-3)
	}
	return keys
}

// Rollback returns `pando rollback`.
func Rollback(o *console.Console) *cobra.Command {
	var to int
	var reason string
	c := o.OfService(o.WaitFlags(&cobra.Command{
		Use: "rollback SERVICE", Short: "deploy the spec of an older revision again",
		Long: "Deploy the spec of an older revision as a new revision: the one of --to, or the newest\n" +
			"that served before with another spec. During a rollout it goes back to the revision that\n" +
			"serves. A failed revision is refused, and so is one without a difference.",
		Example: "  pando rollback website --wait\n  pando rollback website --to 3 --reason 'slow pages'",
	}), cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if to < 0 {
			return cli.Usagef("--to: want the number of a revision, got %d", to)
		}
		st, err := o.Client.Rollback(ctx, key, to, reason)
		if err != nil {
			return err
		}
		all := []deployed{{ServiceStatus: st, Deployed: st.Latest}}
		if o.Wait {
			awaitAll(ctx, o, all)
		}
		if all[0].err != nil {
			return all[0].err
		}
		return o.Out.Show(all[0], func(w io.Writer) { oneLine(w, all[0].ServiceStatus) })
	})
	c.Flags().IntVar(&to, "to", 0, "number of the revision (0 = the one that served before)")
	c.Flags().StringVar(&reason, "reason", "", "reason, for the record")
	return o.Out.Flag(c)
}

// Diff returns `pando diff`.
func Diff(o *console.Console) *cobra.Command {
	var f specfile.Flags
	c := &cobra.Command{
		Use:   "diff SERVICE [REV] [REV] | diff FILE",
		Short: "compare revisions of a service, or a file with it",
		Long: "Print the lines in which two revisions of a service differ: the two newest, REV and\n" +
			"the newest, or the two given ones. With a file (*.yaml, *.yml, or a path that begins\n" +
			"with a dot or a slash), print the changes that its deploy would make.",
		Example: "  pando diff website\n  pando diff website 2 4\n  pando diff pando.yaml --env staging",
		Args:    cobra.RangeArgs(1, 3), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			if f.Env != "" && !isFile(args[0]) {
				return cli.Usagef("diff: --env goes with a file; want: pando diff FILE --env %s", f.Env)
			}
			if isFile(args[0]) {
				if len(args) > 1 {
					return cli.Usagef("diff: a file has no revisions; want: pando diff FILE")
				}
				specs, err := specfile.Load(ctx, o, args[0], f)
				if err != nil {
					return err
				}
				return compareAll(ctx, o, specs)
			}
			key, err := pando.ParseServiceKey(args[0])
			if err != nil {
				return err
			}
			return o.SuggestService(ctx, key, diffRevisions(ctx, o, key, args[1:]))
		},
	}
	f.AddEnv(c)
	return o.Out.Flag(c)
}

// isFile reports whether an argument names a spec file and no service.
func isFile(name string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(name)) ||
		strings.HasPrefix(name, ".") || strings.HasPrefix(name, "/")
}

// comparison holds the lines in which two revisions of a service differ.
type comparison struct {
	Service pando.ServiceKey `json:"service"`
	From    int              `json:"from"`
	To      int              `json:"to"`
	Changed []string         `json:"changed"` // keys of the spec
	Lines   []string         `json:"lines"`
}

func diffRevisions(ctx context.Context, o *console.Console, key pando.ServiceKey, revs []string) error {
	all, err := o.Client.Revisions(ctx, key)
	if err != nil {
		return err
	}
	a, b, err := pair(key, all, revs)
	if err != nil {
		return err
	}
	d := comparison{key, a.Number, b.Number, spec.Changed(a.Spec, b.Spec), spec.Diff(a.Spec, b.Spec)}
	return o.Out.Show(d, d.print)
}

// pair returns the two revisions that the arguments choose.
func pair(
	key pando.ServiceKey, all []pando.Revision, revs []string,
) (a, b pando.Revision, err error) {
	if len(all) < 2 && len(revs) == 0 {
		return a, b, fmt.Errorf("%w: %s has a single revision; `pando diff FILE` compares a file with it",
			pando.ErrRefused, key)
	}
	chosen := []pando.Revision{}
	for _, text := range revs {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return a, b, cli.Usagef("diff: want the number of a revision, got %q", text)
		}
		i := slices.IndexFunc(all, func(r pando.Revision) bool { return r.Number == n })
		if i < 0 {
			return a, b, fmt.Errorf("revision %d of %s: %w; `pando history %s` lists the revisions",
				n, key, pando.ErrNotFound, key)
		}
		chosen = append(chosen, all[i])
	}
	if len(all) == 0 {
		return a, b, errors.New("the service has no revision")
	}
	newest := all[len(all)-1]
	switch len(chosen) {
	case 0:
		return all[len(all)-2], newest, nil
	case 1:
		return chosen[0], newest, nil
	}
	return chosen[0], chosen[1], nil
}

func (d comparison) print(w io.Writer) {
	if len(d.Lines) == 0 {
		fmt.Fprintf(w, "revisions %d and %d of %s have the same spec\n", d.From, d.To, d.Service)
		return
	}
	fmt.Fprintf(w, "--- %s revision %d\n+++ %s revision %d\n", d.Service, d.From, d.Service, d.To)
	for _, l := range d.Lines {
		fmt.Fprintln(w, cli.Clean(l))
	}
}
