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
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/driver/wall"
)

// drainWait is how long `pando hosts drain` waits by default: longer than the drain_max of a spec
// that has none.
const drainWait = 30 * time.Minute

// drainHost returns `pando hosts drain`.
func drainHost(o *console.Console) *cobra.Command {
	var keep, within time.Duration
	wait := true
	c := &cobra.Command{
		Use: "drain HOST", Short: "move the instances of a host elsewhere, for maintenance",
		Long: "Drain a host. It takes no new instances. Those that it has start elsewhere first, and\n" +
			"leave once the others serve. A service that stops first (scale.max 1, rollout.order) is\n" +
			"down meanwhile. Runs end by themselves. Instances that cannot leave stay, and the command\n" +
			"names them with the reason: those with volumes or a state on the host, and those that no\n" +
			"other host takes. The mark stays over restarts of the host, until `pando hosts undrain` or\n" +
			"for the time of --for.\n\n" +
			"The command waits until the host is empty. The exit code is 7 if instances stay, or if they\n" +
			"are left at the end of --timeout. The drain continues then, and after Ctrl-C. The host still\n" +
			"answers for VIPs and sends connections on; `pando down` there ends that.\n" +
			"Run this command on the host itself, on a server's host, or on a host with the right `admit`.",
		Example: "  pando hosts drain host2\n  pando hosts drain host2 --for 2h\n" +
			"  pando hosts drain host2 --wait=false",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			h := pando.HostName(args[0])
			if err := pando.CheckLabel("host", args[0]); err != nil {
				return err
			}
			st, err := o.Client.Members().DrainHost(c.Context(), h, keep)
			if err == nil && wait {
				st, err = awaitDrain(c.Context(), o, st, within)
			}
			if err != nil {
				return err
			}
			if err := o.Out.Show(st, func(w io.Writer) { drainText(w, st) }); err != nil || !wait {
				return err
			}
			if st.Count > 0 {
				return cli.Code(cli.CodeOf(pando.ErrNotReady))
			}
			return nil
		},
	}
	cli.DurationVar(c.Flags(), &keep, "for", 0, "end the drain by itself after this time (0 = until undrain)")
	c.Flags().BoolVar(&wait, "wait", true, "wait until the host is empty")
	cli.DurationVar(c.Flags(), &within, "timeout", drainWait, "time limit of --wait")
	return o.Out.Flag(c)
}

// undrainHost returns `pando hosts undrain`.
func undrainHost(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "undrain HOST", Short: "let a drained host take new instances again",
		Long: "End the drain of a host: it takes new instances again. Services that spread become even by\n" +
			"themselves. Others stay where they are; `pando rebalance` moves them.\n" +
			"Run this command on a server's host, or on a host with the right `admit`.",
		Example: "  pando hosts undrain host2", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := pando.CheckLabel("host", args[0]); err != nil {
				return err
			}
			st, err := o.Client.Members().UndrainHost(c.Context(), pando.HostName(args[0]))
			if err != nil {
				return err
			}
			return o.Out.Show(st, func(w io.Writer) {
				fmt.Fprintf(w, "host %s takes new instances; `pando rebalance` moves instances to it\n", st.Host)
			})
		},
	})
}

// awaitDrain polls the drain of a host until nothing is left there but what stays. It prints each
// change of what is left.
func awaitDrain(
	ctx context.Context, o *console.Console, st pando.HostDrainStatus, limit time.Duration,
) (pando.HostDrainStatus, error) {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := ""
	for {
		if st.Drain == nil {
			return st, fmt.Errorf("%w: the drain of host %s has ended; `pando hosts` shows the hosts",
				pando.ErrConflict, st.Host)
		}
		if st.Count == st.Stays {
			return st, nil
		}
		if text := leftText(st); text != last {
			last = text
			// A lost line is harmless: the result of the command follows.
			fmt.Fprintf(o.Out.Stderr, "waiting: %s\n", cli.Clean(text))
		}
		if pando.Sleep(within, wall.Clock{}, o.Rest) != nil {
			break
		}
		next, err := o.Client.Members().HostDrain(within, st.Host)
		if err != nil && within.Err() != nil {
			break
		}
		if err != nil && !errors.Is(err, pando.ErrUnavailable) { // a server restarts, or is drained itself
			return st, err
		}
		if err == nil {
			st = next
		}
	}
	if ctx.Err() != nil {
		return st, fmt.Errorf("%w: the drain of host %s continues; `pando hosts` shows it", ctx.Err(),
			st.Host)
	}
	return st, fmt.Errorf("waited %s: %w: %s; the drain continues, and `pando hosts` shows it", limit,
		pando.ErrNotReady, cli.Clean(leftText(st)))
}

// leftMax bounds the services in one line about a drained host.
const leftMax = 5

// leftText returns what is left on a host in one line: instances of one service with one reason
// share an entry.
func leftText(st pando.HostDrainStatus) string {
	type kind struct {
		service pando.ServiceKey
		reason  string
		stays   bool
	}
	counts, order := map[kind]int{}, []kind{}
	for _, l := range st.Left {
		k := kind{l.Service, l.Reason, l.Stays}
		if counts[k]++; counts[k] == 1 {
			order = append(order, k)
		}
	}
	var parts []string
	for _, k := range order[:min(len(order), leftMax)] {
		verb := ""
		if k.stays {
			verb = "stays, for "
		}
		parts = append(parts, fmt.Sprintf("%d of %s (%s%s)", counts[k], k.service, verb, k.reason))
	}
	if more := len(order) - leftMax; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%s left on %s: %s", cli.Count(st.Count, "instance"), st.Host,
		strings.Join(parts, ", "))
}

// drainText prints the end of a drain, or its progress.
func drainText(w io.Writer, st pando.HostDrainStatus) {
	until := ""
	if st.Drain != nil && !st.Drain.Until.IsZero() {
		until = ", until " + st.Drain.Until.UTC().Format(time.RFC3339)
	}
	if st.Count == 0 {
		fmt.Fprintf(w, "host %s is drained%s: no instance is left; `pando hosts undrain %[1]s` ends that\n",
			st.Host, until)
		return
	}
	fmt.Fprintf(w, "host %s takes no new instances%s\n", st.Host, until)
	for _, l := range st.Left {
		verb := "leaves"
		if l.Stays {
			verb = "stays"
		}
		fmt.Fprintln(w, cli.Clean(fmt.Sprintf("  %s of %s %s: %s", l.Instance, l.Service, verb, l.Reason)))
	}
	if more := st.Count - len(st.Left); more > 0 {
		fmt.Fprintf(w, "  and %s more\n", cli.Count(more, "instance"))
	}
}

// drainedHosts prints the drained hosts with what is left on them.
func drainedHosts(w io.Writer, all []pando.HostStatus, now time.Time) {
	for _, h := range all {
		d := h.Drain
		if d == nil {
			continue
		}
		text := fmt.Sprintf("%s is drained by %s since %s", h.Name, d.By, console.Brief(now.Sub(d.At)))
		if !d.Until.IsZero() {
			text += fmt.Sprintf(", for %s", console.Brief(d.Until.Sub(d.At)))
		}
		switch {
		case h.Instances == 0:
			text += ": it is empty"
		default:
			text += fmt.Sprintf(": %s left", cli.Count(h.Instances, "instance"))
		}
		if h.Staying != "" {
			text += "; these stay: " + h.Staying
		}
		fmt.Fprintln(w, cli.Clean(text+fmt.Sprintf(" (`pando hosts undrain %s` ends the drain)", h.Name)))
	}
}
