package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
)

// confirming waits for the hosts after a change. began is the start of the command's wait.
type confirming struct {
	*Console
	began time.Time
}

// all waits until every host steers the services that a command waited for. Then the first
// connection to a new VIP finds its service, through any host. It lists the hosts without a
// confirmation and leaves the result of the command as it is: the services do serve.
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
		missing := o.unconfirmed(ctx, tenant, names)
		for _, n := range places {
			all[n].Unconfirmed = missing
		}
		if ctx.Err() != nil {
			for _, n := range places {
				all[n].err = ctx.Err()
			}
		}
	}
}

// unconfirmed waits for the hosts, at most as long as a silent host keeps its lease. It returns the
// hosts without a confirmation. A token sees their number alone.
func (o confirming) unconfirmed(
	ctx context.Context, tenant pando.Tenant, of []pando.ServiceName,
) (missing []pando.HostName) {
	left := min(pando.SteeringWaitMax, max(0, o.within-time.Since(o.began)))
	wait := min(reasonAfter, left)
	for {
		hosts, err := api.SteeringClient{Client: o.client}.Steering(ctx, tenant, of, wait)
		if err != nil {
			return nil // an older server, or a service that is being removed: nothing is known
		}
		missing = nil
		for _, h := range hosts {
			if !h.Confirmed {
				missing = append(missing, h.Host)
			}
		}
		if left -= wait; len(missing) == 0 {
			return nil
		}
		if left <= 0 {
			fmt.Fprintf(o.Stderr, "warning: %s confirmed the steering yet; a new connection by way of "+
				"such a host may be refused\n", lacking(missing))
			return missing
		}
		fmt.Fprintf(o.Stderr, "waiting: %s confirmed the steering yet\n", lacking(missing))
		wait = left
	}
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
