package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/spec"
)

func (o *command) deploy() *cobra.Command {
	var dry bool
	c := o.waits(&cobra.Command{
		Use: "deploy SPEC.yaml", Short: "make a spec the newest revision of its service",
		Long: "Makes each service of the file serve as it says. A service that runs keeps running: instances of the new revision start beside\n" +
			"the old ones, and if they fail everything goes back by itself. A spec that changes nothing changes nothing.",
		Example: "  pando deploy examples/website/pando.yaml --wait\n  pando deploy pando.yaml --dry-run",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(c *cobra.Command, args []string) error {
			specs, err := spec.Load(c.Context(), args[0])
			if err != nil {
				return err
			}
			for _, s := range specs {
				deploy := o.deployOne
				if dry {
					deploy = o.compare
				}
				if err := deploy(c.Context(), s); err != nil {
					return err
				}
			}
			return nil
		},
	})
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would be done")
	return c
}

func (o *command) deployOne(ctx context.Context, s pando.Spec) error {
	st, err := o.client.Deploy(ctx, s)
	if err == nil && o.wait {
		st, err = o.until(ctx, s.Key(), serving)
	}
	if err != nil {
		return err
	}
	return o.show(st, func(w io.Writer) { oneLine(w, st) })
}

// compare says what a deploy would do to what is there.
func (o *command) compare(ctx context.Context, s pando.Spec) error {
	st, err := o.client.Service(ctx, s.Key())
	if err != nil && !errors.Is(err, pando.ErrNotFound) {
		return err
	}
	does := struct {
		Service pando.ServiceKey `json:"service"`
		New     bool             `json:"new"`
		Changes []string         `json:"changes"` // lines of the spec that go (-) and come (+)
	}{s.Key(), st.Spec == nil, []string{}}
	if st.Spec != nil {
		does.Changes = difference(string(spec.Format(*st.Spec)), string(spec.Format(s.WithDefaults())))
	}
	return o.show(does, func(w io.Writer) {
		switch {
		case does.New:
			fmt.Fprintf(w, "%s is new: a deploy would start %d\n", s.Key(), s.WithDefaults().Scale.Min)
		case len(does.Changes) == 0:
			fmt.Fprintf(w, "%s is this already: a deploy would change nothing\n", s.Key())
		default:
			fmt.Fprintf(w, "%s is at revision %d: a deploy would replace its %d instances\n%s\n", s.Key(), st.Latest, len(st.Instances), strings.Join(does.Changes, "\n"))
		}
	})
}

// difference is the lines that are only in one of two texts.
func difference(before, after string) []string {
	out := []string{}
	old, fresh := strings.Split(strings.TrimSpace(before), "\n"), strings.Split(strings.TrimSpace(after), "\n")
	for _, l := range old {
		if !slices.Contains(fresh, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range fresh {
		if !slices.Contains(old, l) {
			out = append(out, "+ "+l)
		}
	}
	return out
}

func (o *command) scale() *cobra.Command {
	var keep time.Duration
	c := o.of(o.waits(&cobra.Command{
		Use: "scale SERVICE N|auto", Short: "fix the number of instances for a while, or make it automatic again",
		Long: "Fixes the number of instances. As long as it holds nothing else scales the service; when it ends (--for, or `scale SERVICE auto`)\n" +
			"scaling is automatic again.",
		Example: "  pando scale website 3 --for 10m --wait\n  pando scale website auto",
	}), cobra.ExactArgs(2), func(ctx context.Context, key pando.ServiceKey, args []string) error {
		if args[0] == "auto" {
			st, err := o.client.Unpin(ctx, key)
			if err != nil {
				return err
			}
			return o.show(st, func(w io.Writer) { oneLine(w, st) })
		}
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 0 {
			return usageError{fmt.Errorf("scale: want a number or auto, got %q", args[0])}
		}
		st, err := o.client.Pin(ctx, key, n, keep)
		if err == nil && st.Scale.Max > 0 && (n < st.Scale.Min || n > st.Scale.Max) {
			fmt.Fprintf(o.env.Stderr, "%d is beyond the budget of %s: a pin is stronger; `pando scale %s auto` lifts it\n", n, bounds(st.Scale), key.Name)
		}
		if err == nil && o.wait {
			st, err = o.until(ctx, key, func(st pando.ServiceStatus) (bool, error) {
				return st.InRotation == n && inService(st) == n && (n == 0 || st.Phase == pando.ServiceServing), nil
			})
		}
		if err != nil {
			return err
		}
		return o.show(st, func(w io.Writer) { oneLine(w, st) })
	})
	c.Flags().DurationVar(&keep, "for", 0, "how long (0: until it is lifted with auto)")
	return c
}

// inService counts the instances of a service that are not in reserve.
func inService(st pando.ServiceStatus) int {
	n := 0
	for _, i := range st.Instances {
		if !i.Warm {
			n++
		}
	}
	return n
}

func (o *command) rm() *cobra.Command {
	var purge bool
	c := o.of(o.waits(&cobra.Command{
		Use: "rm SERVICE", Short: "let a service drain, merge its state and go",
		Long:    "Takes every instance out of rotation, lets its connections end and its state be merged, then forgets the service.\nThe merged state stays, unless --purge is given: a service of the same name finds it again.",
		Example: "  pando rm website --wait\n  pando rm website --purge",
	}), cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if err := o.client.Remove(ctx, key, purge); err != nil {
			return err
		}
		gone := "is going"
		if o.wait {
			_, err := o.until(ctx, key, func(pando.ServiceStatus) (bool, error) { return false, nil })
			if !errors.Is(err, pando.ErrNotFound) {
				return err
			}
			gone = "is gone"
		}
		done := struct {
			Service pando.ServiceKey `json:"service"`
			Gone    bool             `json:"gone"`
		}{key, o.wait}
		return o.show(done, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", key, gone) })
	})
	c.Flags().BoolVar(&purge, "purge", false, "its state goes, too")
	return c
}
