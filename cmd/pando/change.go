package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
)

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
			st, err = o.until(ctx, key, o.watching(st), func(st pando.ServiceStatus) (bool, error) {
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

// inService counts the instances of a service that are not warm.
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
			_, err := o.until(ctx, key, o.watching(), func(pando.ServiceStatus) (bool, error) { return false, nil })
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
