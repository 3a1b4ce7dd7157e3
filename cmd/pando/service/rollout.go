package service

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Rollout returns `pando rollout`.
func Rollout(o *console.Console) *cobra.Command {
	c := &cobra.Command{
		Use: "rollout", Short: "show, pause, resume, undo or finish a rollout",
		Long: "Look after the way from one revision of a service to the next. A deploy starts it, and\n" +
			"a failed gate of the spec ends it by itself.",
		Example: "  pando rollout status website\n  pando rollout undo website --wait",
	}
	c.AddCommand(rolloutStatus(o), rolloutPause(o), rolloutResume(o), rolloutUndo(o),
		rolloutFinish(o))
	return c
}

func rolloutStatus(o *console.Console) *cobra.Command {
	return o.Out.Flag(o.OfService(&cobra.Command{
		Use: "status SERVICE", Short: "show the rollout in progress, or the end of the newest",
		Example: "  pando rollout status website",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		return showRollout(o)(o.Client.Rollout(ctx, key))
	}))
}

func rolloutPause(o *console.Console) *cobra.Command {
	var reason string
	c := o.OfService(&cobra.Command{
		Use: "pause SERVICE", Short: "pause the rollout in progress",
		Long: "Pause the rollout in progress. No instance of the new revision starts, and none of the\n" +
			"old one leaves. A failing new revision is still rolled back. A new deploy starts a\n" +
			"rollout that is not paused.",
		Example: "  pando rollout pause website --reason 'look at the logs'",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		return showRollout(o)(o.Client.PauseRollout(ctx, key, reason))
	})
	c.Flags().StringVar(&reason, "reason", "", "reason, for the record")
	return o.Out.Flag(c)
}

func rolloutResume(o *console.Console) *cobra.Command {
	return o.Out.Flag(o.OfService(&cobra.Command{
		Use: "resume SERVICE", Short: "continue a paused rollout",
		Example: "  pando rollout resume website",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		return showRollout(o)(o.Client.ResumeRollout(ctx, key))
	}))
}

func rolloutFinish(o *console.Console) *cobra.Command {
	var now bool
	c := o.OfService(&cobra.Command{
		Use: "finish SERVICE --now", Short: "end the drains of old instances at once",
		Long: "End the drains of a service: its draining instances wait for no connection. Their\n" +
			"programs stop, and their states are merged. The open connections break. `pando ps`\n" +
			"shows what a drain waits for.",
		Example: "  pando rollout finish website --now",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if !now {
			return cli.Usagef("rollout finish breaks the open connections of the old instances; " +
				"confirm it with --now, or let drain_max of the spec end the wait")
		}
		if err := o.Client.EndDrains(ctx, key); err != nil {
			return err
		}
		done := struct {
			Service pando.ServiceKey `json:"service"`
		}{key}
		return o.Out.Show(done, func(w io.Writer) { fmt.Fprintf(w, "the drains of %s end now\n", key) })
	})
	c.Flags().BoolVar(&now, "now", false, "break the open connections")
	return o.Out.Flag(c)
}

func rolloutUndo(o *console.Console) *cobra.Command {
	var reason string
	c := o.OfService(o.WaitFlags(&cobra.Command{
		Use: "undo SERVICE", Short: "go back to the revision that serves, or served before",
		Long: "End the rollout in progress. The instances of the revision that serves stay, and the\n" +
			"new ones leave. Outside a rollout it does the same as `pando rollback SERVICE`.",
		Example: "  pando rollout undo website --wait --reason 'slow pages'",
	}), cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		st, err := o.Client.UndoRollout(ctx, key, reason)
		if err != nil {
			return err
		}
		all := []deployed{{ServiceStatus: st, Deployed: st.Target}}
		if o.Wait {
			awaitAll(ctx, o, all)
		}
		if all[0].err != nil {
			return all[0].err
		}
		return o.Out.Show(all[0], func(w io.Writer) { oneLine(w, all[0].ServiceStatus) })
	})
	c.Flags().StringVar(&reason, "reason", "", "reason, for the record")
	return o.Out.Flag(c)
}

// showRollout returns a function that prints an answer about a rollout.
func showRollout(o *console.Console) func(pando.RolloutStatus, error) error {
	return func(st pando.RolloutStatus, err error) error {
		if err != nil {
			return err
		}
		return o.Out.Show(st, func(w io.Writer) { rollout(w, st, time.Now()) })
	}
}

// rollout prints the progress of a rollout, and the end of the newest one.
func rollout(w io.Writer, st pando.RolloutStatus, now time.Time) {
	lines := []string{console.Row("service", st.Service), console.Row("rollout", phrase(st))}
	if st.Rolling {
		lines = append(lines,
			console.Row("instances", fmt.Sprintf("%d old, %d new, %d of them healthy; %d wanted",
				st.Old, st.New, st.Healthy, st.Wanted)))
	}
	if t := st.Trial; t != nil && st.Rolling {
		lines = append(lines, console.Row("for", console.Brief(t.Age(now))))
		if t.Share > 0 {
			lines = append(lines, console.Row("canary", fmt.Sprintf("%g%% of new connections", 100*t.Share)))
		}
		if c := t.Compared; c != nil {
			text := fmt.Sprintf("%.4g in revision %d", c.New, st.To)
			if c.Old != nil {
				text += fmt.Sprintf(", %.4g in revision %d", *c.Old, st.From)
			}
			lines = append(lines, console.Row("gate", text))
		}
		if p := t.Paused; p != nil {
			text := fmt.Sprintf("for %s, by %s", console.Brief(now.Sub(p.At)), p.By)
			if p.Reason != "" {
				text += ": " + p.Reason
			}
			lines = append(lines, console.Row("paused", text))
		}
	}
	if st.Next != "" {
		lines = append(lines, console.Row("next", st.Next))
	}
	if e := st.Outcome; e != nil {
		lines = append(lines, console.Row("newest end", fmt.Sprintf("revision %d is %s: %s", e.Revision,
			e.State, e.Reason)))
	}
	cli.Columns(w, lines...)
}

// phrase returns the progress of a rollout in a few words.
func phrase(st pando.RolloutStatus) string {
	switch {
	case !st.Rolling && st.From == 0:
		return fmt.Sprintf("revision %d is the first and has not served yet", st.To)
	case !st.Rolling:
		return fmt.Sprintf("none: revision %d serves", st.From)
	case st.Trial != nil && st.Trial.Paused != nil:
		return fmt.Sprintf("from revision %d to %d, paused", st.From, st.To)
	}
	return fmt.Sprintf("from revision %d to %d", st.From, st.To)
}
