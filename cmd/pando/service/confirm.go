package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// confirming waits for the hosts after a change. began is the start of the command's wait.
type confirming struct {
	console *console.Console
	began   time.Time
}

// all waits until every host steers the services that a command waited for. Then the first
// connection to a new VIP finds its service, through any host. It lists the hosts without a
// confirmation, and those that leave out a part.
func (o confirming) all(ctx context.Context, all []deployed) {
	of := map[pando.Tenant][]int{}
	for n := range all {
		if all[n].err == nil {
			of[all[n].Tenant] = append(of[all[n].Tenant], n)
		}
	}
	for tenant, places := range of {
		names := make([]pando.ServiceName, 0, len(places))
		for _, n := range places {
			names = append(names, all[n].Name)
		}
		missing, partly, err := o.unconfirmed(ctx, tenant, names)
		for _, n := range places {
			all[n].Unconfirmed, all[n].Partly, all[n].err = missing, partly, err
		}
		if ctx.Err() != nil {
			for _, n := range places {
				all[n].err = ctx.Err()
			}
		}
	}
}

// unconfirmed waits for the hosts, at most as long as a silent host keeps its lease. It returns the
// hosts without a confirmation, and those that leave out a part. A token sees their number alone. An
// error means that neither is known.
func (o confirming) unconfirmed(
	ctx context.Context, tenant pando.Tenant, of []pando.ServiceName,
) (missing []pando.HostName, partly []pando.HostSteering, err error) {
	left := min(pando.SteeringWaitMax, max(0, o.console.Within-time.Since(o.began)))
	wait := min(console.ReasonAfter, left)
	for {
		hosts, err := api.SteeringClient{Client: o.console.Client}.Steering(ctx, tenant, of, wait)
		if errors.Is(err, pando.ErrNotFound) {
			return nil, nil, nil // a service that is being removed has no steering
		}
		if err != nil {
			return nil, nil, fmt.Errorf("the change is made, and whether each host steers by it is not "+
				"known: %w", err)
		}
		missing, partly = nil, nil
		for _, h := range hosts {
			if !h.Confirmed {
				missing = append(missing, h.Host)
			} else if h.Partly {
				partly = append(partly, h)
			}
		}
		if left -= wait; len(missing)+len(partly) == 0 {
			return nil, nil, nil
		}
		word, after := "waiting", ""
		if left <= 0 {
			word, after = "warning", "; a new connection by way of such a host may be refused"
		}
		if len(missing) > 0 {
			fmt.Fprintf(o.console.Out.Stderr, "%s: %s confirmed the steering yet%s\n", word, lacking(missing), after)
		}
		if len(partly) > 0 {
			fmt.Fprintf(o.console.Out.Stderr, "%s: %s%s\n", word, partlyText(partly), after)
		}
		if left <= 0 {
			return missing, partly, nil
		}
		wait = left
	}
}

// partlyText says which hosts leave out a part, and what the first one leaves out. Hosts often have
// the same reason.
func partlyText(hosts []pando.HostSteering) string {
	var names []pando.HostName
	for _, h := range hosts {
		names = append(names, h.Host)
	}
	text := lacking(names) + " taken over a part of the steering"
	if first := hosts[0]; first.Reason != "" {
		text += fmt.Sprintf(": %s: %s", cli.Clean(string(first.Host)), cli.Clean(first.Reason))
	}
	return text + "; `pando hosts` tells more"
}

// unsteered returns the exit code of a command whose services serve, while hosts do not steer to
// all of them, or nil. The warnings are printed.
func unsteered(all ...deployed) error {
	for _, d := range all {
		if d.err == nil && len(d.Unconfirmed)+len(d.Partly) > 0 {
			return cli.Code(cli.CodeOf(pando.ErrNotReady))
		}
	}
	return nil
}

// lacking names hosts that have not done something, up to the verb.
func lacking(hosts []pando.HostName) string {
	var names []string
	for _, h := range hosts {
		if h != "" {
			names = append(names, cli.Clean(string(h)))
		}
	}
	switch {
	case len(hosts) == 1 && len(names) == 1:
		return "host " + names[0] + " has not"
	case len(hosts) == 1:
		return "1 host has not"
	case len(names) == 0 || len(names) > 5:
		return cli.Count(len(hosts), "host") + " have not"
	}
	return "hosts " + strings.Join(names, ", ") + " have not"
}
