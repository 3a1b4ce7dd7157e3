package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/spec"
)

// command is one operator's command with what all of them share.
type command struct {
	env    Env
	client *api.Client
	json   bool
	wait   bool
	within time.Duration
}

// waitLook is how often --wait looks.
const waitLook = 20 * time.Millisecond

func operatorCommands(env Env) []*cobra.Command {
	socket := env.Getenv("PANDO_API")
	if socket == "" {
		socket = "/run/pando/api.sock"
	}
	o := &command{env: env, client: api.NewClient(socket)}
	all := []*cobra.Command{o.deploy(), o.ps(), o.status(), o.why(), o.logs(), o.scale(), o.rm(), o.state(), o.hosts()}
	for _, c := range all {
		c.PersistentFlags().VarP((*format)(&o.json), "output", "o", "text or json")
	}
	return all
}

// format is the flag -o.
type format bool

func (f *format) String() string { return map[bool]string{true: "json", false: "text"}[bool(*f)] }
func (f *format) Type() string   { return "format" }
func (f *format) Set(s string) error {
	if s != "json" && s != "text" {
		return fmt.Errorf("want text or json, got %q", s)
	}
	*f = s == "json"
	return nil
}

// show prints a value for programs, or lets text print it for people.
func (o *command) show(v any, text func(w io.Writer)) error {
	if !o.json {
		text(o.env.Stdout)
		return nil
	}
	e := json.NewEncoder(o.env.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (o *command) waits(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&o.wait, "wait", false, "return once it is done")
	c.Flags().DurationVar(&o.within, "timeout", time.Minute, "how long --wait waits")
	return c
}

// until looks at a service until done holds. A failure that is not overcome ends the wait.
func (o *command) until(ctx context.Context, s pando.ServiceKey, done func(pando.ServiceStatus) bool) (pando.ServiceStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, o.within)
	defer cancel()
	var last pando.ServiceStatus
	for {
		st, err := o.client.Service(ctx, s)
		if err == nil {
			last = st
		}
		if err != nil && ctx.Err() == nil {
			return st, err
		}
		if err == nil && done(st) {
			return st, nil
		}
		if err == nil && st.Problem != nil && (st.Problem.Kind == pando.DecidedRollback || st.Current == 0) {
			return st, explain(st)
		}
		if pando.Sleep(ctx, pando.WallClock{}, waitLook) != nil {
			return last, explain(last)
		}
	}
}

// explain says why a service is not there: the newest failure with its evidence.
func explain(st pando.ServiceStatus) error {
	if st.Problem == nil {
		return fmt.Errorf("%s is %s: %s: %w", st.Name, st.Phase, st.Reason, pando.ErrNotReady)
	}
	text := fmt.Sprintf("%s: %s %s", st.Name, st.Problem.Instance, st.Problem.Reason)
	for _, l := range st.Problem.Lines {
		text += "\n  | " + l
	}
	return fmt.Errorf("%s\n%w", text, pando.ErrNotReady)
}

func serving(st pando.ServiceStatus) bool {
	return st.Current == st.Latest && st.Phase == pando.ServiceServing
}

func (o *command) deploy() *cobra.Command {
	return o.waits(&cobra.Command{
		Use: "deploy SPEC.yaml", Short: "make a spec the newest revision of its service", Example: "  pando deploy examples/website/pando.yaml --wait",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			specs, err := spec.Load(args[0])
			if err != nil {
				return err
			}
			for _, s := range specs {
				st, err := o.client.Deploy(c.Context(), s)
				if err == nil && o.wait {
					st, err = o.until(c.Context(), s.Key(), serving)
				}
				if err != nil {
					return err
				}
				if err := o.show(st, func(w io.Writer) { oneLine(w, st) }); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

func oneLine(w io.Writer, st pando.ServiceStatus) {
	fmt.Fprintf(w, "%s  revision %d  %s (%s)  VIP %s\n", st.ServiceKey, st.Target, st.Phase, st.Reason, st.VIP)
}

func (o *command) ps() *cobra.Command {
	return &cobra.Command{
		Use: "ps", Short: "list instances", Example: "  pando ps", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := o.client.Services(c.Context())
			if err != nil {
				return err
			}
			return o.show(all, func(w io.Writer) { table(w, all) })
		},
	}
}

func (o *command) status() *cobra.Command {
	return &cobra.Command{
		Use: "status [SERVICE]", Short: "show services, or one of them", Example: "  pando status website -o json", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				all, err := o.client.Services(c.Context())
				if err != nil {
					return err
				}
				return o.show(all, func(w io.Writer) {
					for _, st := range all {
						oneLine(w, st)
					}
				})
			}
			st, err := o.service(c.Context(), args[0])
			if err != nil {
				return err
			}
			return o.show(st, func(w io.Writer) {
				oneLine(w, st)
				table(w, []pando.ServiceStatus{st})
			})
		},
	}
}

func (o *command) service(ctx context.Context, name string) (pando.ServiceStatus, error) {
	key, err := pando.ParseServiceKey(name)
	if err != nil {
		return pando.ServiceStatus{}, err
	}
	return o.client.Service(ctx, key)
}

func (o *command) why() *cobra.Command {
	var most int
	c := &cobra.Command{
		Use: "why SERVICE", Short: "say what was decided about a service, by whom and why", Example: "  pando why website -n 20", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			key, err := pando.ParseServiceKey(args[0])
			if err != nil {
				return err
			}
			all, err := o.client.Why(c.Context(), key, most)
			if err != nil {
				return err
			}
			return o.show(all, func(w io.Writer) {
				for _, b := range all {
					because(w, b)
				}
			})
		},
	}
	c.Flags().IntVarP(&most, "number", "n", 0, "the newest so many (0: all)")
	return c
}

func (o *command) logs() *cobra.Command {
	var lines int
	var follow bool
	var instance string
	c := &cobra.Command{
		Use: "logs SERVICE", Short: "print what the instances of a service print", Example: "  pando logs -f website", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			key, err := pando.ParseServiceKey(args[0])
			if err != nil {
				return err
			}
			log, err := o.client.Logs(c.Context(), key, pando.InstanceID(instance), lines, follow)
			if err != nil {
				return err
			}
			defer log.Close()
			if _, err = io.Copy(o.env.Stdout, log); c.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
	c.Flags().IntVar(&lines, "lines", 100, "from so many lines before the end")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as lines come")
	c.Flags().StringVar(&instance, "instance", "", "of one instance")
	return c
}

func (o *command) scale() *cobra.Command {
	var keep time.Duration
	c := o.waits(&cobra.Command{
		Use: "scale SERVICE N|auto", Short: "fix the number of instances for a while, or make it automatic again",
		Example: "  pando scale website 3 --for 10m\n  pando scale website auto", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			key, err := pando.ParseServiceKey(args[0])
			if err != nil {
				return err
			}
			if args[1] == "auto" {
				st, err := o.client.Unpin(c.Context(), key)
				if err != nil {
					return err
				}
				return o.show(st, func(w io.Writer) { oneLine(w, st) })
			}
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return usageError{fmt.Errorf("scale: want a number or auto, got %q", args[1])}
			}
			st, err := o.client.Pin(c.Context(), key, n, keep)
			if err == nil && o.wait {
				st, err = o.until(c.Context(), key, func(st pando.ServiceStatus) bool { return st.InRotation == n && len(st.Instances) == n })
			}
			if err != nil {
				return err
			}
			return o.show(st, func(w io.Writer) { oneLine(w, st) })
		},
	})
	c.Flags().DurationVar(&keep, "for", 0, "how long (0: until `scale SERVICE auto`)")
	return c
}

func (o *command) rm() *cobra.Command {
	var purge bool
	c := o.waits(&cobra.Command{
		Use: "rm SERVICE", Short: "let a service drain, merge its state and go", Example: "  pando rm website --wait", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			key, err := pando.ParseServiceKey(args[0])
			if err != nil {
				return err
			}
			if err := o.client.Remove(c.Context(), key, purge); err != nil || !o.wait {
				return err
			}
			_, err = o.until(c.Context(), key, func(pando.ServiceStatus) bool { return false })
			if errors.Is(err, pando.ErrNotFound) {
				return nil
			}
			return err
		},
	})
	c.Flags().BoolVar(&purge, "purge", false, "its state goes, too")
	return c
}

func (o *command) state() *cobra.Command {
	var most int
	log := &cobra.Command{
		Use: "log SERVICE", Short: "list the newest commits of a service's state", Example: "  pando state log website", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			key, err := pando.ParseServiceKey(args[0])
			if err != nil {
				return err
			}
			all, err := o.client.StateLog(c.Context(), key, most)
			if err != nil {
				return err
			}
			return o.show(all, func(w io.Writer) {
				for _, v := range all {
					fmt.Fprintf(w, "%.10s  %s  %s  %s\n", v.Commit, time.Unix(v.At, 0).Format("15:04:05"), v.Instance, v.Message)
				}
			})
		},
	}
	log.Flags().IntVarP(&most, "number", "n", 20, "so many")
	c := &cobra.Command{Use: "state", Short: "look at the merged state of a service", Example: "  pando state log website"}
	c.AddCommand(log)
	return c
}

func (o *command) hosts() *cobra.Command {
	return &cobra.Command{
		Use: "hosts", Short: "list hosts", Example: "  pando hosts", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := o.client.Hosts(c.Context())
			if err != nil {
				return err
			}
			return o.show(all, func(w io.Writer) {
				for _, h := range all {
					fmt.Fprintf(w, "%s  %s  %g CPUs  %d MiB\n", h.Name, h.Address, h.CPUs, h.Memory>>20)
				}
			})
		},
	}
}

// because prints one intent or decision as a line.
func because(w io.Writer, b pando.Because) {
	if d := b.Decision; d != nil {
		fmt.Fprintf(w, "%s  %s  %s: %s\n", clock(d.At), d.Kind, who(d.By, d.Instance), d.Reason)
		for _, l := range d.Lines {
			fmt.Fprintf(w, "              | %s\n", l)
		}
		return
	}
	i := b.Intent
	var steps []string
	for _, t := range i.History {
		steps = append(steps, fmt.Sprintf("%s (%s)", t.State, t.Reason))
	}
	fmt.Fprintf(w, "%s  %s  %s %s: %s\n", clock(i.Asked()), i.Verb, i.By, i.Instance, strings.Join(steps, " → "))
}

func who(by pando.Asker, i pando.InstanceID) string {
	if i == "" {
		return by.String()
	}
	return string(i)
}

func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

func table(w io.Writer, all []pando.ServiceStatus) {
	fmt.Fprintf(w, "%-20s %-18s %-22s %-4s %-12s %s\n", "SERVICE", "INSTANCE", "ENDPOINT", "REV", "PHASE", "REASON")
	for _, st := range all {
		for _, i := range st.Instances {
			fmt.Fprintf(w, "%-20s %-18s %-22s %-4d %-12s %s\n", st.ServiceKey, i.ID, i.Endpoint, i.Revision, i.Phase, i.Reason)
		}
	}
}
