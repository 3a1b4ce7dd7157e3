package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
)

func (o *command) ps() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use: "ps", Short: "list instances", Example: "  pando ps\n  pando ps --watch", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch {
				return o.live(c.Context())
			}
			all, err := o.client.Services(c.Context())
			if err != nil {
				return err
			}
			return o.show(all, func(w io.Writer) { instances(w, all, time.Now()) })
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "print the list again whenever it changes")
	return c
}

// live lists the instances again after every change. On a terminal it overwrites the last list.
func (o *command) live(ctx context.Context) error {
	all, err := o.client.Services(ctx)
	if err != nil {
		return err
	}
	news := make(chan struct{}, 1)
	ends := make(chan error, 1)
	go func() {
		ends <- o.client.Watch(ctx, seen(all), func(api.Event) {
			select {
			case news <- struct{}{}:
			default:
			}
		})
	}()
	for {
		if isTerminal(o.env.Stdout) {
			fmt.Fprint(o.env.Stdout, "\x1b[H\x1b[2J")
		}
		if err := o.show(all, func(w io.Writer) { instances(w, all, time.Now()) }); err != nil {
			return err
		}
		var tick <-chan time.Time // a pipe gets changes only
		if isTerminal(o.env.Stdout) {
			tick = time.After(time.Second)
		}
		select {
		case <-news:
		case <-tick: // the column FOR grows
		case err := <-ends:
			return ended(ctx, err)
		}
		if all, err = o.client.Services(ctx); err != nil {
			return ended(ctx, err)
		}
	}
}

// seen returns the newest store revision that a list of services reflects.
func seen(all []pando.ServiceStatus) (at pando.StoreRevision) {
	for _, st := range all {
		at = max(at, st.Seen)
	}
	return at
}

// ended returns the error of a command that runs until it is interrupted. After an interrupt the
// interrupt is the error, not its consequences.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (o *command) watch() *cobra.Command {
	return o.of(&cobra.Command{
		Use: "watch [SERVICE]", Short: "print every change as it happens",
		Long: "Prints a line for every change of services, instances, requests and decisions until it is interrupted; with -o json each line is\n" +
			"one JSON object. The first line, a bookmark, says that it listens and from which revision of the store on. It goes on where it\n" +
			"was when the server restarts.",
		Example: "  pando watch website\n  pando watch -o json | jq .kind",
	}, cobra.MaximumNArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		var from pando.StoreRevision
		if key.Name != "" {
			st, err := o.client.Service(ctx, key)
			if err != nil {
				return err
			}
			from = st.Seen
		}
		watched, stop := context.WithCancel(ctx)
		defer stop()
		var unsaid error
		err := o.client.Watch(watched, from, func(e api.Event) {
			if s, ok := e.Key.Service(); unsaid == nil && (key.Name == "" || e.Kind == pando.KindBookmark || ok && s == key) {
				if unsaid = o.tell(e); unsaid != nil {
					stop() // the output is closed
				}
			}
		})
		if unsaid != nil {
			return unsaid
		}
		return ended(ctx, err)
	})
}

func (o *command) status() *cobra.Command {
	return o.of(&cobra.Command{
		Use: "status [SERVICE]", Short: "show services, or one of them", Example: "  pando status\n  pando status website -o json",
	}, cobra.MaximumNArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if key.Name == "" {
			all, err := o.client.Services(ctx)
			if err != nil {
				return err
			}
			return o.show(all, func(w io.Writer) { services(w, all) })
		}
		st, err := o.client.Service(ctx, key)
		if err != nil {
			return err
		}
		return o.show(st, func(w io.Writer) { whole(w, st, time.Now()) })
	})
}

func (o *command) why() *cobra.Command {
	var most int
	c := o.of(&cobra.Command{
		Use: "why SERVICE", Short: "say what was asked and decided about a service, by whom and why",
		Example: "  pando why website -n 20",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		all, err := o.client.Why(ctx, key, most)
		if err != nil {
			return err
		}
		return o.show(all, func(w io.Writer) {
			slices.SortStableFunc(all, func(a, b pando.Because) int { return shownAt(a).Compare(shownAt(b)) })
			for _, b := range all {
				because(w, b)
			}
		})
	})
	c.Flags().IntVarP(&most, "number", "n", 0, "the newest so many (0: all)")
	return c
}

func (o *command) logs() *cobra.Command {
	var lines int
	var follow bool
	var instance string
	c := o.of(&cobra.Command{
		Use: "logs SERVICE", Short: "print what the instances of a service print",
		Long: "Print the last log lines of a service, prefixed by instance. --instance selects one, running or gone. Without a\n" +
			"running instance, print the newest dead one. A terminal gets no control characters; a pipe gets every byte.",
		Example: "  pando logs -f website\n  pando logs website --instance website-7k3fq",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		return o.copyLogs(ctx, key, pando.InstanceID(instance), lines, follow)
	})
	c.Flags().IntVar(&lines, "lines", 100, "from so many lines before the end")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as lines come")
	c.Flags().StringVar(&instance, "instance", "", "of one instance")
	return c
}

// copyLogs copies the logs of a service to standard output. It replaces control characters if the
// output is a terminal.
func (o *command) copyLogs(ctx context.Context, key pando.ServiceKey, instance pando.InstanceID, lines int, follow bool) error {
	// A stream that begins with nothing looks as if it hangs.
	if instance == "" && follow && lines > 0 {
		if n, err := o.copyOnce(ctx, io.Discard, key, "", 1, false); err == nil && n == 0 {
			fmt.Fprintf(o.env.Stderr, "%s has printed nothing yet\n", key)
		}
	}
	var out io.Writer = o.env.Stdout
	if isTerminal(out) {
		out = &harmless{to: out}
	}
	n, err := o.copyOnce(ctx, out, key, instance, lines, follow)
	if n == 0 && err == nil && !follow && lines > 0 {
		about := key.String()
		if instance != "" {
			about = string(instance)
		}
		fmt.Fprintf(o.env.Stderr, "%s has printed nothing yet\n", about)
	}
	return err
}

func (o *command) copyOnce(ctx context.Context, to io.Writer, key pando.ServiceKey, instance pando.InstanceID, lines int, follow bool) (int64, error) {
	log, err := o.client.Logs(ctx, key, instance, lines, follow)
	if instance != "" && errors.Is(err, pando.ErrNotFound) {
		return 0, fmt.Errorf("instance %s: %w, and no log of it is kept; `pando why %s` names the instances that there were", instance, pando.ErrNotFound, key)
	}
	if err != nil {
		return 0, err
	}
	defer log.Close()
	n, err := io.Copy(to, log)
	return n, ended(ctx, err)
}

func (o *command) state() *cobra.Command {
	var most int
	log := o.of(&cobra.Command{
		Use: "log SERVICE", Short: "list the newest commits of a service's state", Example: "  pando state log website",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		all, err := o.client.StateLog(ctx, key, most)
		if err != nil {
			return err
		}
		return o.show(all, func(w io.Writer) { commits(w, all) })
	})
	log.Flags().IntVarP(&most, "number", "n", 20, "so many")
	c := &cobra.Command{Use: "state", Short: "look at the merged state of a service", Example: "  pando state log website"}
	c.AddCommand(log)
	return c
}

func (o *command) hosts() *cobra.Command {
	c := &cobra.Command{
		Use: "hosts", Short: "list hosts", Example: "  pando hosts", Args: cobra.NoArgs, Annotations: map[string]string{runs: ""},
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := o.client.Hosts(c.Context())
			if err != nil {
				return err
			}
			return o.show(all, func(w io.Writer) { hosts(w, all, time.Now()) })
		},
	}
	c.AddCommand(o.removeHost())
	return c
}

func (o *command) removeHost() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm HOST", Short: "end the membership of a host",
		Long: "Ends the membership of a host: its certificate counts no more, its name and slot are free, and its instances are forgotten.\n" +
			"Services that can start elsewhere do. It refuses a host that is here with instances, or that keeps states, unless\n" +
			"--force is given. Nothing is stopped on the host itself: `pando down` there does that. Run it on the server's host.",
		Example: "  pando hosts rm host2\n  pando hosts rm host2 --force", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			h := pando.HostName(args[0])
			if err := pando.CheckLabel("host", args[0]); err != nil {
				return err
			}
			if err := o.client.RemoveHost(c.Context(), h, force); err != nil {
				return err
			}
			is := struct {
				Host pando.HostName `json:"host"`
			}{h}
			return o.show(is, func(w io.Writer) { fmt.Fprintf(w, "host %s is no member any more\n", h) })
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also a host that is here with instances, or that keeps states")
	return c
}

func (o *command) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "say which pando this is", Example: "  pando version -o json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				System  string `json:"system"`
				Kernel  string `json:"kernel"`
			}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, kernelRelease()}
			return o.show(v, func(w io.Writer) {
				fmt.Fprintf(w, "pando %s (%s, %s, Linux %s)\n", v.Version, v.Go, v.System, v.Kernel)
			})
		},
	}
}
