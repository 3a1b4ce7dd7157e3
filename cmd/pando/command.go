package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/driver/wall"
	"pando.run/pando/spec/nearest"
)

// command is the state that the operator's commands share.
type command struct {
	env    Env
	client *api.Client
	json   bool
	wait   bool
	within time.Duration
	rest   time.Duration // pause between two looks of --wait
}

// waitLook is the interval at which --wait polls a single service. With four or more services
// it polls each less often.
const waitLook = 20 * time.Millisecond

func newCommand(env Env) *command {
	socket := env.Getenv("PANDO_API")
	if socket == "" {
		socket = "/run/pando/api.sock"
	}
	return &command{env: env, client: api.NewClient(socket, wall.Clock{}), rest: waitLook}
}

func (o *command) operators() []*cobra.Command {
	return []*cobra.Command{o.deploy(), o.ps(), o.status(), o.why(), o.logs(), o.watch(), o.scale(), o.rm(), o.state(), o.hosts(), o.spec(), o.doctor(), o.version()}
}

// format is the flag -o.
type format bool

func (f *format) String() string { return map[bool]string{true: "json", false: "text"}[bool(*f)] }
func (f *format) Type() string   { return "text|json" }
func (f *format) Set(s string) error {
	if s != "json" && s != "text" {
		return fmt.Errorf("want text or json, got %q", s)
	}
	*f = s == "json"
	return nil
}

// show prints v as JSON for programs, or calls text to print it for people.
func (o *command) show(v any, text func(w io.Writer)) error {
	page := newPage(o.env)
	if !o.json {
		text(page)
		return o.print(page.Bytes())
	}
	e := json.NewEncoder(page)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	return o.print(page.Bytes())
}

// print writes to standard output. It returns an error if the write fails, for example because a
// file is on a full disk.
func (o *command) print(text []byte) error {
	if _, err := o.env.Stdout.Write(text); err != nil {
		return fmt.Errorf("the output is not whole: %w", err)
	}
	return nil
}

func (o *command) waits(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&o.wait, "wait", false, "return once it is done")
	c.Flags().DurationVar(&o.within, "timeout", time.Minute, "how long --wait waits")
	return c
}

// of makes a command about one service. The first argument is the name of the service.
func (o *command) of(c *cobra.Command, args cobra.PositionalArgs, run func(ctx context.Context, s pando.ServiceKey, args []string) error) *cobra.Command {
	c.Args = args
	c.ValidArgsFunction = o.complete
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return run(c.Context(), pando.ServiceKey{}, nil)
		}
		key, err := pando.ParseServiceKey(args[0])
		if err != nil {
			return err
		}
		return o.meant(c.Context(), key, run(c.Context(), key, args[1:]))
	}
	return c
}

// meant adds the most likely intended name to the error about a missing service.
func (o *command) meant(ctx context.Context, s pando.ServiceKey, err error) error {
	if !errors.Is(err, pando.ErrNotFound) {
		return err
	}
	all, lerr := o.client.Services(ctx)
	if lerr != nil {
		return err
	}
	var names, others []string
	for _, st := range all {
		if st.ServiceKey == s {
			// The service exists; the error is about a part of it.
			return err
		}
		names = append(names, st.ServiceKey.String())
		if st.Name == s.Name {
			others = append(others, st.ServiceKey.String())
		}
	}
	if len(others) > 0 && s.Tenant == pando.DefaultTenant {
		return fmt.Errorf("service %s: %w; a service of another tenant has that name: %s", s, pando.ErrNotFound, strings.Join(others, ", "))
	}
	if best := nearest.Word(s.String(), names); best != "" {
		return fmt.Errorf("service %s: %w; did you mean %s?", s, pando.ErrNotFound, best)
	}
	return fmt.Errorf("service %s: %w; `pando status` lists the services", s, pando.ErrNotFound)
}

// complete offers the names of services to the shell.
func (o *command) complete(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Second)
	defer cancel()
	all, err := o.client.Services(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	for _, st := range all {
		names = append(names, cobra.CompletionWithDesc(st.ServiceKey.String(), clean(fmt.Sprintf("%s, %s", st.Phase, st.Reason))))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// until polls a service until done returns true or an error, or the time is up.
func (o *command) until(
	ctx context.Context, s pando.ServiceKey, shown *progress, done func(pando.ServiceStatus) (bool, error),
) (pando.ServiceStatus, error) {
	within, cancel := context.WithTimeout(ctx, o.within)
	defer cancel()
	last := pando.ServiceStatus{Service: pando.Service{ServiceKey: s}}
	for {
		st, err := o.client.Service(within, s)
		if err == nil {
			last = st
			shown.tell(st)
			if ok, hopeless := done(st); ok || hopeless != nil {
				return st, hopeless
			}
		}
		if err != nil && within.Err() == nil {
			return last, err
		}
		if pando.Sleep(within, wall.Clock{}, o.rest) == nil {
			continue
		}
		if ctx.Err() != nil {
			return last, fmt.Errorf("%w: %s goes on without you; `pando status %s` shows how far it is", ctx.Err(), s, s)
		}
		return last, fmt.Errorf("waited %s: %w", o.within, explain(last, last.Target))
	}
}

// explain returns the error of a revision that does not serve. The error has the newest failure,
// its log lines and the command that prints more.
func explain(st pando.ServiceStatus, revision int) error {
	if st.Problem == nil {
		return fmt.Errorf("revision %d of %s: %w: the service is %s: %s; `pando why %s` says more",
			revision, st.ServiceKey, pando.ErrNotReady, st.Phase, clean(st.Reason), st.ServiceKey)
	}
	about := ""
	if st.Problem.Instance != "" {
		about = fmt.Sprintf(": instance %s", st.Problem.Instance)
	}
	text := ""
	for _, l := range st.Problem.Lines {
		text += "\n  | " + clean(l)
	}
	return fmt.Errorf("revision %d of %s: %w%s: %s%s\n`pando why %s` says more",
		revision, st.ServiceKey, pando.ErrNotReady, about, clean(st.Problem.Reason), text, st.ServiceKey)
}
