package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
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

// live lists the instances again at every change, over the last list where it is a terminal.
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
		select {
		case <-news:
		case err := <-ends:
			return ended(ctx, err)
		}
		if all, err = o.client.Services(ctx); err != nil {
			return ended(ctx, err)
		}
	}
}

// seen is the newest commit that a list of services reflects.
func seen(all []pando.ServiceStatus) (at pando.StoreRevision) {
	for _, st := range all {
		at = max(at, st.Seen)
	}
	return at
}

// ended forgives what goes wrong once the user has had enough.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
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
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var unsaid error
		err := o.client.Watch(ctx, from, func(e api.Event) {
			if s, ok := e.Key.Service(); unsaid == nil && (key.Name == "" || e.Kind == pando.KindBookmark || ok && s == key) {
				if unsaid = o.tell(e); unsaid != nil {
					stop() // nobody would see what follows
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
		Long:    "Prints the ends of the logs of all instances, each line with its instance; or of one, also of one that is gone.",
		Example: "  pando logs -f website\n  pando logs website --instance website-7k3fq",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		log, err := o.client.Logs(ctx, key, pando.InstanceID(instance), lines, follow)
		if instance != "" && errors.Is(err, pando.ErrNotFound) {
			return fmt.Errorf("instance %s: %w, and no log of it is kept; `pando ps` lists the instances", instance, pando.ErrNotFound)
		}
		if err != nil {
			return err
		}
		defer log.Close()
		_, err = io.Copy(o.env.Stdout, log)
		return ended(ctx, err)
	})
	c.Flags().IntVar(&lines, "lines", 100, "from so many lines before the end")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as lines come")
	c.Flags().StringVar(&instance, "instance", "", "of one instance")
	return c
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
