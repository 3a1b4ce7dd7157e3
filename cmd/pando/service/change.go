package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Scale returns `pando scale`.
func Scale(o *console.Console) *cobra.Command {
	var keep time.Duration
	c := o.OfService(o.WaitFlags(&cobra.Command{
		Use: "scale SERVICE N|auto", Short: "fix the number of instances, or scale automatically again",
		Long: "Fix the number of instances. While it is fixed, nothing else scales the service.\n" +
			"Scaling is automatic again after --for, or after `pando scale SERVICE auto`.",
		Example: "  pando scale website 3 --for 10m --wait\n  pando scale website auto",
	}), cobra.ExactArgs(2), func(ctx context.Context, key pando.ServiceKey, args []string) error {
		if args[0] == "auto" {
			st, err := o.Client.Unpin(ctx, key)
			if err != nil {
				return err
			}
			return o.Out.Show(st, func(w io.Writer) { oneLine(w, st) })
		}
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 0 {
			return cli.Usagef("scale: want a number or auto, got %q", args[0])
		}
		st, err := o.Client.Pin(ctx, key, n, keep)
		if err == nil && st.Scale.Max > 0 && (n < st.Scale.Min || n > st.Scale.Max) {
			fmt.Fprintf(o.Out.Stderr,
				"%d is beyond the budget of %s and holds until `pando scale %s auto`\n",
				n, console.Bounds(st.Scale), key.Name)
		}
		scaled := []deployed{{ServiceStatus: st, err: err}}
		if err == nil && o.Wait {
			began := time.Now()
			scaled[0].ServiceStatus, scaled[0].err = o.Until(ctx, key, o.Progress(st), pinned(st, n))
			confirming{o, began}.all(ctx, scaled)
		}
		if st, err = scaled[0].ServiceStatus, scaled[0].err; err != nil {
			return err
		}
		err = o.Out.Show(scaled[0], func(w io.Writer) { oneLine(w, st) })
		return cmp.Or(err, unsteered(scaled[0]))
	})
	cli.DurationVar(c.Flags(), &keep, "for", 0, "fix it for this time (0 = until auto)")
	return o.Out.Flag(c)
}

// pinned returns a test whether a service has the n instances that a pin asked for. The test fails
// once the pin is over or another one took its place: then n may never come. asked is the answer to
// the pin. A status that is older, of a server that is behind, proves nothing.
func pinned(asked pando.ServiceStatus, n int) func(pando.ServiceStatus) (bool, error) {
	return func(st pando.ServiceStatus) (bool, error) {
		switch {
		case st.Version < asked.Version:
			return false, nil
		case st.InRotation == n && inService(st) == n &&
			(n == 0 || st.Phase == pando.ServiceServing):
			return true, nil
		case st.Removing:
			return false, fmt.Errorf("%w: %s is being removed", pando.ErrRefused, st.ServiceKey)
		case st.Pin == nil || st.Pin.Instances != n || !st.Pin.Until.Equal(asked.Pin.Until):
			return false, fmt.Errorf("%w: %s had %d of %d instances when the pin ended; "+
				"`pando why %[2]s` shows its end, --for sets how long a pin holds",
				pando.ErrNotReady, st.ServiceKey, st.InRotation, n)
		}
		return false, nil
	}
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

// Rm returns `pando rm`.
func Rm(o *console.Console) *cobra.Command {
	var purge, now bool
	c := o.OfService(o.WaitFlags(&cobra.Command{
		Use: "rm SERVICE", Short: "drain a service, merge its state and remove it",
		Long: "Take every instance out of rotation, wait for its connections to end, merge its state,\n" +
			"then remove the service. The merged state stays, and a service of the same name finds\n" +
			"it again. --purge deletes it. --now waits for no connection, also of a removal that is\n" +
			"in progress.",
		Example: "  pando rm website --wait\n  pando rm website --purge\n  pando rm website --now",
	}), cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if err := o.Client.Remove(ctx, key, purge); err != nil {
			return err
		}
		if now { // a service without instances may be gone already
			if err := o.Client.EndDrains(ctx, key); err != nil && !errors.Is(err, pando.ErrNotFound) {
				return err
			}
		}
		gone := "is leaving"
		if o.Wait {
			never := func(pando.ServiceStatus) (bool, error) { return false, nil }
			_, err := o.Until(ctx, key, o.Progress(), never)
			if !errors.Is(err, pando.ErrNotFound) {
				return err
			}
			gone = "is gone"
		}
		done := struct {
			Service pando.ServiceKey `json:"service"`
			Gone    bool             `json:"gone"`
		}{key, o.Wait}
		return o.Out.Show(done, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", key, gone) })
	})
	c.Flags().BoolVar(&purge, "purge", false, "also delete its state")
	c.Flags().BoolVar(&now, "now", false, "break the open connections")
	return o.Out.Flag(c)
}
