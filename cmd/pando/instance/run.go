package instance

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/specfile"
	"pando.run/pando/driver/clock"
	"pando.run/pando/spec/span"
)

// Run returns `pando run`.
func Run(o *console.Console) *cobra.Command {
	var input, terminal, detach bool
	var f specfile.Flags
	c := &cobra.Command{
		Use: "run SERVICE|FILE.yaml [-- COMMAND…]", Short: "run a command with a spec, or a job once",
		Long: "Run a command in an instance of its own: with the service's image, environment and\n" +
			"secrets, its volumes read-only, and never in rotation. The instance is removed at the end,\n" +
			"and the exit code is the command's. Without a command, run a job and wait for its end:\n" +
			"exit code 0 if it succeeded. --detach returns at once; `pando runs` and `pando logs` show\n" +
			"the rest. The command waits a minute for a host that has room.\n\n" +
			"With a spec file, run its command, or another one, without deploying the file. A service\n" +
			"NAME-run-… exists until the end of the run. Its volumes begin empty and end with it.",
		Example: "  pando run shop/web -- ./manage.py migrate\n  pando run -it web -- sh\n" +
			"  pando run nightly --detach\n  pando run pando.yaml -- ./manage.py check",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			command := args[1:]
			if len(command) > 0 && command[0] == "--" {
				command = command[1:]
			}
			if specfile.IsSpecFile(args[0]) {
				if detach {
					return cli.Usagef("run: --detach needs a deployed service: the one of a file ends with " +
						"its caller")
				}
				s, err := specfile.LoadOne(c.Context(), o, args[0], f)
				if err != nil {
					return err
				}
				return once(c.Context(), o, s, pando.SessionSpec{Command: command, Terminal: terminal}, input)
			}
			key, err := pando.ParseServiceKey(args[0])
			if err != nil {
				return err
			}
			ask := pando.RunAsk{Command: command}
			switch {
			case detach && (input || terminal):
				return cli.Usagef("run: --detach has no caller to pass -i or -t to; leave one out")
			case detach || len(command) == 0:
				err = runAway(c.Context(), o, key, ask, !detach)
			default:
				spec := pando.SessionSpec{Command: command, Terminal: terminal}
				begin := func(ctx context.Context) (io.ReadWriteCloser, error) {
					return api.Runs(o.Client).Attach(ctx, key, spec)
				}
				err = attend(c.Context(), o, &spec, input, begin)
			}
			return o.SuggestService(c.Context(), key, err)
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVarP(&input, "interactive", "i", false, "pass standard input on")
	c.Flags().BoolVarP(&terminal, "tty", "t", false, "give the command a terminal")
	c.Flags().BoolVarP(&detach, "detach", "d", false, "return once the run has begun")
	f.AddEnv(c)
	return o.Out.Flag(c)
}

// runAway starts a run without a session. With wait it waits for the end and returns its exit code.
func runAway(
	ctx context.Context, o *console.Console, key pando.ServiceKey, ask pando.RunAsk, wait bool,
) error {
	r, err := api.Runs(o.Client).Start(ctx, key, ask)
	if err != nil {
		return err
	}
	if wait {
		if r, err = ranTo(ctx, o, key, r.Number); err != nil {
			return err
		}
	}
	err = o.Out.Show(r, func(w io.Writer) {
		fmt.Fprintf(w, "run %d of %s  %s%s\n", r.Number, key, r.State,
			strings.TrimSuffix(": "+cli.Clean(r.Reason), ": "))
	})
	if err == nil && !r.Active() && r.State != pando.RunSucceeded {
		return cli.Exit(1)
	}
	return err
}

// hostWaitMax is how long the command waits for a host that has room for a run.
const hostWaitMax = time.Minute

// ranTo waits for the end of a run.
func ranTo(
	ctx context.Context, o *console.Console, key pando.ServiceKey, number int,
) (pando.Run, error) {
	waits, last := console.Reasons{O: o, Began: time.Now()}, time.Now()
	for {
		st, err := o.Client.Service(ctx, key)
		if err != nil {
			return pando.Run{}, err
		}
		waits.Print(st)
		at := st.Book.Find(number)
		if at < 0 {
			return pando.Run{}, fmt.Errorf("run %d of %s: %w: newer runs have its place in the book",
				number, key, pando.ErrNotFound)
		}
		switch r := st.Book.Runs[at]; {
		case !r.Active():
			return r, nil
		case r.Reason == "":
			last = time.Now()
		case time.Since(last) > hostWaitMax:
			return r, fmt.Errorf("%w: run %d of %s has waited for a host for %s: %s; it waits on: `pando why "+
				"--pending %s` explains each host, and `pando runs %s --end %d` ends it", pando.ErrNotReady,
				number, key, span.Text(hostWaitMax), r.Reason, key, key, number)
		}
		if err := pando.Sleep(ctx, clock.Clock{}, 5*console.WaitLook); err != nil {
			return pando.Run{}, fmt.Errorf("%w: run %d of %s continues; `pando runs %s` shows it, and "+
				"`pando runs %s --end %d` ends it", err, number, key, key, key, number)
		}
	}
}

// Runs returns `pando runs`.
func Runs(o *console.Console) *cobra.Command {
	end := 0
	c := o.OfService(&cobra.Command{
		Use: "runs SERVICE", Short: "list the runs of a service, the newest last, or end one",
		Long: "List the newest runs of a job, or of the commands of `pando run`. A service keeps\n" +
			"20 ended runs.",
		Example: "  pando runs nightly\n  pando runs nightly --end 7",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if end > 0 {
			r, err := api.Runs(o.Client).End(ctx, key, end)
			if err != nil {
				return err
			}
			book := &pando.RunBook{Runs: []pando.Run{r}}
			return o.Out.Show(r, func(w io.Writer) { console.RunTable(w, book, time.Now()) })
		}
		st, err := o.Client.Service(ctx, key)
		if err != nil {
			return err
		}
		book := st.Book.Clone()
		return o.Out.Show(book, func(w io.Writer) { console.RunTable(w, book, time.Now()) })
	})
	c.Flags().IntVar(&end, "end", 0, "end the run of this number")
	return o.Out.Flag(c)
}
