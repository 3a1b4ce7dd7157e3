// Package service holds the commands about services: deploy and change them, and see why they are as
// they are.
package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/specfile"
	"pando.run/pando/spec"
)

// Deploy returns `pando deploy`.
func Deploy(o *console.Console) *cobra.Command {
	var dry bool
	var f specfile.Flags
	c := o.WaitFlags(&cobra.Command{
		Use: "deploy FILE.yaml", Short: "make a spec the newest revision of its service",
		Long: "Make each service of the file serve as its spec describes. A running service keeps\n" +
			"serving: instances of the new revision start beside the old ones, and a failure brings\n" +
			"the old revision back. A spec without a change changes nothing.\n\n" +
			"A file may hold several services. Each is deployed on its own, so a failure of one\n" +
			"does not stop the others. The command then fails, and -o json prints a list. --wait\n" +
			"waits for the revision that this command deployed, and until every host steers it. It\n" +
			"names a host that does not confirm that for 8 seconds. On a terminal it prints each\n" +
			"change of an instance, and why none starts.\n\n" +
			"--env staging adds the changes of pando.staging.yaml, which lies beside pando.yaml.\n\n" +
			"A Compose file is converted first, as `pando convert` shows. FILE may be -, the standard\n" +
			"input: its paths are relative to the working folder.",
		Example: "  pando deploy examples/website/pando.yaml --wait\n" +
			"  pando deploy pando.yaml --dry-run\n  cat pando.yaml | pando deploy -\n  pando deploy pando.yaml --env staging",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(
			[]cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: func(c *cobra.Command, args []string) error {
			specs, err := specfile.Load(c.Context(), o, args[0], f)
			if err != nil {
				return err
			}
			if dry {
				return compareAll(c.Context(), o, specs)
			}
			return deployAll(c.Context(), o, specs)
		},
	})
	f.Add(c)
	c.Flags().BoolVar(&dry, "dry-run", false, "print the changes without making them")
	return o.Out.Flag(c)
}

// deployed is the result of deploying one service of a file.
type deployed struct {
	pando.ServiceStatus
	Deployed int `json:"deployed,omitempty"` // the revision that the deploy created or selected
	// Unconfirmed are the hosts that --wait lists: they have not confirmed their steering.
	Unconfirmed []pando.HostName `json:"unconfirmed,omitempty"`
	// Partly are the hosts that --wait lists: they steer by it and leave out a part.
	Partly []pando.HostSteering `json:"partly,omitempty"`
	Failed string               `json:"error,omitempty"`
	err    error
}

// deployAll deploys every service of a file and reports each result. With --wait it waits for all
// of them.
func deployAll(ctx context.Context, o *console.Console, specs []pando.Spec) error {
	all := make([]deployed, len(specs))
	for n, s := range specs {
		all[n] = deployOne(ctx, o, s)
		if err := all[n].err; ctx.Err() != nil || errors.Is(err, pando.ErrUnavailable) {
			return err // every other deploy would fail in the same way
		}
	}
	if o.Wait {
		awaitAll(ctx, o, all)
	}
	for _, d := range all {
		for _, w := range d.Warnings {
			fmt.Fprintf(o.Out.Stderr, "warning: %s: %s\n", d.ServiceKey, cli.Clean(w))
		}
	}
	if len(all) == 1 {
		if all[0].err != nil {
			return all[0].err
		}
		err := o.Out.Show(all[0], func(w io.Writer) { oneLine(w, all[0].ServiceStatus) })
		return cmp.Or(err, unsteered(all[0]))
	}
	return cmp.Or(errors.Join(showAll(o, all), failures(all)), unsteered(all...))
}

func deployOne(ctx context.Context, o *console.Console, s pando.Spec) (d deployed) {
	d.ServiceKey = s.Key()
	before, err := o.Client.Service(ctx, s.Key())
	if err != nil && !errors.Is(err, pando.ErrNotFound) {
		d.err = err
		return d
	}
	st, err := o.Client.Deploy(ctx, s)
	if err != nil {
		d.err = err
		return d
	}
	d.ServiceStatus, d.Deployed = st, st.Target
	// The target may already be the former revision again, because a revision can fail during the
	// request.
	if st.Latest > before.Latest {
		d.Deployed = st.Latest
	}
	return d
}

// awaitAll waits until every deployed service serves its revision or has failed, and every host
// steers those that serve.
func awaitAll(ctx context.Context, o *console.Console, all []deployed) {
	var known []pando.ServiceStatus
	for _, d := range all {
		known = append(known, d.ServiceStatus)
	}
	shown := o.Progress(known...)
	began := time.Now()
	o.Rest = console.WaitLook * time.Duration(1+len(all)/4)
	var group sync.WaitGroup
	for n := range all {
		if d := &all[n]; d.err == nil {
			group.Go(func() {
				warnings := d.Warnings
				d.ServiceStatus, d.err = o.Until(ctx, d.ServiceKey, shown, serving(d.Deployed))
				d.Warnings = warnings
			})
		}
	}
	group.Wait()
	confirming{o, began}.all(ctx, all)
}

// showAll prints a line for each service of a file.
func showAll(o *console.Console, all []deployed) error {
	for n := range all {
		if all[n].err != nil {
			all[n].Failed = all[n].err.Error()
		}
	}
	return o.Out.Show(all, func(w io.Writer) {
		for _, d := range all {
			if d.err == nil {
				oneLine(w, d.ServiceStatus)
				continue
			}
			text, _, _ := strings.Cut(d.Failed, "\n")
			fmt.Fprintf(w, "%s  failed: %s\n", d.ServiceKey, cli.Clean(text))
		}
	})
}

// failures returns one error for all services of a file that failed, or nil.
func failures(all []deployed) error {
	var errs []error
	var names []string
	for _, d := range all {
		if d.err != nil {
			errs, names = append(errs, d.err), append(names, d.ServiceKey.String())
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%d of %d services failed (%s):\n%w",
		len(errs), len(all), strings.Join(names, ", "), errors.Join(errs...))
}

// serving returns a test whether a revision serves. The test fails once that revision was rolled
// back or replaced. It also fails if the service never served and an instance of the revision
// failed.
func serving(revision int) func(pando.ServiceStatus) (bool, error) {
	return func(st pando.ServiceStatus) (bool, error) {
		p := st.Problem
		switch {
		case st.Current == revision && st.Target == revision && (st.Phase == pando.ServiceServing ||
			st.Phase == pando.ServiceCompleted || st.Phase == pando.ServiceScheduled):
			return true, nil
		case st.Phase == pando.ServiceFailed && st.Current == revision:
			return false, console.Explain(st, revision)
		case st.Phase == pando.ServiceRunning:
			return false, nil // an instance that failed may be tried again
		case p != nil && p.Kind == pando.DecidedRollback && int(p.Inputs["from"]) == revision:
			return false, console.Explain(st, revision)
		case st.Target > revision:
			return false, fmt.Errorf("%w: revision %d of %s was replaced by revision %d before it served",
				pando.ErrConflict, revision, st.ServiceKey, st.Target)
		case finished(st):
			return false, nil // control records it next
		case p != nil && p.Kind != pando.DecidedRollback && st.Current == 0 && concerns(p, revision):
			return false, console.Explain(st, revision)
		}
		return false, nil
	}
}

// finished reports whether the newest problem of a service is an instance that did its work: it
// ended with 0, and the spec wants no other in its place.
func finished(st pando.ServiceStatus) bool {
	if st.Problem == nil || st.Spec == nil || st.Spec.Restart == pando.RestartAlways {
		return false
	}
	code, exited := st.Problem.Inputs["exit_code"]
	return exited && code == 0
}

// concerns reports whether a failure is about a revision. A decision made by an older pando has no
// revision and counts for every revision.
func concerns(p *pando.Decision, revision int) bool {
	of, known := p.Inputs["revision"]
	return !known || int(of) == revision
}

// plan lists the changes that a deploy would make to a service.
type plan struct {
	Service pando.ServiceKey `json:"service"`
	New     bool             `json:"new"`
	Changes []string         `json:"changes"` // removed (-) and added (+) lines, with their neighbours
	spec    pando.Spec
	is      pando.ServiceStatus
}

// compareAll prints the changes that a deploy would make to the services of a file.
func compareAll(ctx context.Context, o *console.Console, specs []pando.Spec) error {
	var all []plan
	for _, s := range specs {
		p, err := compareOne(ctx, o, s)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	var v any = all
	if len(all) == 1 {
		v = all[0]
	}
	return o.Out.Show(v, func(w io.Writer) {
		for _, p := range all {
			p.print(w)
		}
	})
}

func compareOne(ctx context.Context, o *console.Console, s pando.Spec) (plan, error) {
	st, err := o.Client.Service(ctx, s.Key())
	if err != nil && !errors.Is(err, pando.ErrNotFound) {
		return plan{}, err
	}
	p := plan{s.Key(), st.Spec == nil, []string{}, s.WithDefaults(), st}
	if st.Spec != nil {
		p.Changes = spec.Diff(*st.Spec, p.spec)
	}
	return p, nil
}

func (p plan) print(w io.Writer) {
	switch {
	case p.New:
		fmt.Fprintf(w, "%s is new: a deploy would start %d\n", p.Service, p.spec.Scale.Min)
	case len(p.Changes) == 0:
		fmt.Fprintf(w, "%s has this spec: a deploy would change nothing\n", p.Service)
	default:
		fmt.Fprintf(w, "%s is at revision %d: a deploy would replace its %s\n%s\n",
			p.Service, p.is.Target, cli.Count(len(p.is.Instances), "instance"),
			strings.Join(p.Changes, "\n"))
	}
	if f := p.spec.Bundle.Folder; f != "" {
		fmt.Fprintf(w, "a deploy reads its bundle %s; other files there are a new revision\n", f)
	}
}
