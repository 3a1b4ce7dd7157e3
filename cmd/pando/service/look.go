package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Ps returns `pando ps`.
func Ps(o *console.Console) *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use: "ps [SERVICE]", Short: "list instances",
		Example: "  pando ps\n  pando ps website\n  pando ps --watch", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				if watch {
					return cli.Usagef("ps: --watch lists all services; `pando watch %s` prints the changes of "+
						"one", args[0])
				}
				return instancesOf(c.Context(), o, args[0])
			}
			if watch {
				return followAll(c.Context(), o)
			}
			all, err := o.Client.Services(c.Context())
			if err != nil {
				return err
			}
			on, err := hostsSeen(c.Context(), o)
			if err != nil {
				return err
			}
			return o.Out.Show(all, func(w io.Writer) { instances(w, all, time.Now(), on.Hosts...); on.Troubles(w) })
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "print the list again whenever it changes")
	return o.Out.Flag(c)
}

// instancesOf lists the instances of one service.
func instancesOf(ctx context.Context, o *console.Console, name string) error {
	key, err := pando.ParseServiceKey(name)
	if err != nil {
		return err
	}
	st, err := o.Client.Service(ctx, key)
	if err != nil {
		return o.SuggestService(ctx, key, err)
	}
	on, err := hostsSeen(ctx, o)
	if err != nil {
		return err
	}
	all := []pando.ServiceStatus{st}
	return o.Out.Show(all, func(w io.Writer) { instances(w, all, time.Now(), on.Hosts...); on.Troubles(w) })
}

// exists returns an error if a service does not exist. A list of its things is empty then too. The zero
// key names no service.
func exists(ctx context.Context, o *console.Console, key pando.ServiceKey) error {
	if key.Name == "" {
		return nil
	}
	_, err := o.Client.Service(ctx, key)
	if err != nil {
		return o.SuggestService(ctx, key, err)
	}
	return nil
}

// hostsSeen returns what the caller sees of the hosts.
func hostsSeen(ctx context.Context, o *console.Console) (on console.Ground, err error) {
	on.Hosts, err = o.Client.Hosts(ctx)
	if !errors.Is(err, pando.ErrForbidden) {
		return on, err
	}
	all, err := api.TenantClient{Client: o.Client}.Tenants(ctx)
	for _, t := range all {
		on.Adrift = strings.TrimSpace(on.Adrift + " " + t.Adrift)
	}
	return console.Ground{Adrift: on.Adrift}, err
}

// live lists the instances again after every change. On a terminal it overwrites the last list.
func followAll(ctx context.Context, o *console.Console) error {
	all, err := o.Client.Services(ctx)
	if err != nil {
		return err
	}
	news := make(chan struct{}, 1)
	ends := make(chan error, 1)
	go func() {
		ends <- o.Client.Watch(ctx, seen(all), func(api.Event) {
			select {
			case news <- struct{}{}:
			default:
			}
		})
	}()
	for {
		if cli.IsTerminal(o.Out.Stdout) {
			fmt.Fprint(o.Out.Stdout, "\x1b[H\x1b[2J")
		}
		if err := o.Out.Show(all, func(w io.Writer) { instances(w, all, time.Now()) }); err != nil {
			return err
		}
		var tick <-chan time.Time // a pipe gets changes only
		if cli.IsTerminal(o.Out.Stdout) {
			tick = time.After(time.Second)
		}
		select {
		case <-news:
		case <-tick: // the column FOR grows
		case err := <-ends:
			return console.WithoutEnd(ctx, err)
		}
		if all, err = o.Client.Services(ctx); err != nil {
			return console.WithoutEnd(ctx, err)
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

// Watch returns `pando watch`.
func Watch(o *console.Console) *cobra.Command {
	return o.Out.Flag(o.OfService(&cobra.Command{
		Use: "watch [SERVICE]", Short: "print every change as it happens",
		Long: "Print a line for every change of services, instances, intents and decisions, until\n" +
			"interrupted. With -o json each line is one JSON object. The first line is a bookmark:\n" +
			"it names the revision of the store after which changes follow. The command survives a\n" +
			"restart of the server and loses no change.",
		Example: "  pando watch website\n  pando watch -o json | jq .kind",
	}, cobra.MaximumNArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		var from pando.StoreRevision
		if key.Name != "" {
			st, err := o.Client.Service(ctx, key)
			if err != nil {
				return err
			}
			from = st.Seen
		}
		watched, stop := context.WithCancel(ctx)
		defer stop()
		var failed error
		err := o.Client.Watch(watched, from, func(e api.Event) {
			s, ok := e.Key.Service()
			wanted := key.Name == "" || e.Kind == pando.KindBookmark || ok && s == key
			if failed == nil && wanted {
				if failed = printEvent(o, e); failed != nil {
					stop() // the output is closed
				}
			}
		})
		if failed != nil {
			return failed
		}
		return console.WithoutEnd(ctx, err)
	}))
}

// Status returns `pando status`.
func Status(o *console.Console) *cobra.Command {
	return o.Out.Flag(o.OfService(&cobra.Command{
		Use: "status [SERVICE]", Short: "show all services, or one in detail",
		Long: "Show all services, or one in detail. The exit code is 12 if a host is frozen: its\n" +
			"agent does not recognise the store and keeps what it has.",
		Example: "  pando status\n  pando status website -o json",
	}, cobra.MaximumNArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if key.Name == "" {
			all, err := o.Client.Services(ctx)
			if err != nil {
				return err
			}
			on, err := hostsSeen(ctx, o)
			if err != nil {
				return err
			}
			show := func(w io.Writer) { services(w, all); console.Waiting(w, all); on.Troubles(w) }
			if err := o.Out.Show(all, show); err != nil {
				return err
			}
			return console.FrozenCode(on.Hosts)
		}
		st, err := o.Client.Service(ctx, key)
		if err != nil {
			return err
		}
		on, err := hostsSeen(ctx, o)
		if err != nil {
			return err
		}
		return o.Out.Show(st, func(w io.Writer) { whole(w, st, time.Now()); on.Troubles(w) })
	}))
}

// Why returns `pando why`.
func Why(o *console.Console) *cobra.Command {
	var most int
	var pending bool
	c := o.OfService(&cobra.Command{
		Use: "why SERVICE", Short: "print intents and decisions of a service, with reasons",
		Example: "  pando why website -n 20\n  pando why website --pending",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		if pending {
			all, err := o.Client.Fits(ctx, key)
			if err != nil {
				return err
			}
			return o.Out.Show(all, func(w io.Writer) { fits(w, all) })
		}
		all, err := o.Client.Why(ctx, key, most)
		if err != nil {
			return err
		}
		on, err := hostsSeen(ctx, o)
		if err != nil {
			return err
		}
		var now []pando.ServiceStatus // an addition: the history is whole without it
		if st, err := o.Client.Service(ctx, key); err == nil {
			now = append(now, st)
		}
		spread := keptVolumes(ctx, o, key, now)
		return o.Out.Show(all, func(w io.Writer) {
			slices.SortStableFunc(all,
				func(a, b pando.Because) int { return cmp.Compare(a.Created, b.Created) })
			for _, b := range all {
				because(w, b)
			}
			if spread != "" {
				fmt.Fprintln(w, spread)
			}
			console.Waiting(w, now)
			on.Troubles(w)
		})
	})
	c.Flags().IntVarP(&most, "number", "n", 0, "show the newest N (0 = all)")
	c.Flags().BoolVar(&pending, "pending", false,
		"explain, host by host, where the next instance starts")
	c.MarkFlagsMutuallyExclusive("number", "pending")
	return o.Out.Flag(c)
}

// kept returns that the newest instances of a service have few of its connections, or "". It is an
// addition to a page, which is whole without it.
func keptVolumes(ctx context.Context, o *console.Console, key pando.ServiceKey, now []pando.ServiceStatus) string {
	if len(now) == 0 || len(now[0].Instances) < 2 {
		return ""
	}
	all, err := o.Client.Stats(ctx, key)
	if err != nil {
		return ""
	}
	return pando.Kept(all, now[0].Scale.By, time.Now())
}

// State returns `pando state`.
func State(o *console.Console) *cobra.Command {
	var most int
	log := o.OfService(&cobra.Command{
		Use: "log SERVICE", Short: "list the newest commits of a service's state",
		Example: "  pando state log website",
	}, cobra.ExactArgs(1), func(ctx context.Context, key pando.ServiceKey, _ []string) error {
		all, err := o.Client.StateLog(ctx, key, most)
		if err != nil {
			return err
		}
		return o.Out.Show(all, func(w io.Writer) { commits(w, all) })
	})
	log.Flags().IntVarP(&most, "number", "n", 20, "show the newest N commits")
	c := &cobra.Command{
		Use: "state", Short: "show the merged state of a service", Example: "  pando state log website",
	}
	c.AddCommand(o.Out.Flag(log))
	return c
}
