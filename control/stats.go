package control

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/status"
)

// statsWaitMax is how long Stats waits for a host.
const statsWaitMax = 5 * time.Second

// Stats implements pando.Operators. It asks each host with an instance once, all at the same time.
func (c *streams) Stats(ctx context.Context, s pando.ServiceKey) ([]pando.InstanceUsage, error) {
	all, err := c.statuses.Services(ctx)
	if err != nil {
		return nil, err
	}
	if s.Name != "" {
		st, err := c.statuses.Service(ctx, s)
		if err != nil {
			return nil, err
		}
		all = []pando.ServiceStatus{st}
	}
	used := c.usage(ctx, s, hostsOf(all))
	out := []pando.InstanceUsage{}
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	for _, st := range all {
		for _, i := range st.Instances {
			u, known := used.of[i.ID]
			u.Instance, u.Service, u.Host = i.ID, i.Service, i.Host
			u.Phase, u.Born, u.Failures = i.Phase, i.Born, st.Failures
			spec, _ := c.mirror.World.SpecOf(i.Service, i.Revision)
			u.Limits = spec.Resources
			if !known {
				u.Missing = cmp.Or(i.Away, used.failed[i.Host], "it does not run yet, or no more")
			}
			out = append(out, u)
		}
	}
	return out, nil
}

// hostsOf returns the hosts with instances of services.
func hostsOf(all []pando.ServiceStatus) []pando.HostName {
	seen := map[pando.HostName]bool{}
	for _, st := range all {
		for _, i := range st.Instances {
			seen[i.Host] = true
		}
	}
	out := make([]pando.HostName, 0, len(seen))
	for h := range seen {
		out = append(out, h)
	}
	slices.Sort(out)
	return out
}

// used holds the answers of several hosts.
type used struct {
	of     map[pando.InstanceID]pando.InstanceUsage
	failed map[pando.HostName]string // the reason of each host that did not answer
}

func (c *streams) usage(ctx context.Context, s pando.ServiceKey, of []pando.HostName) used {
	ctx, cancel := context.WithTimeout(ctx, statsWaitMax)
	defer cancel()
	out := used{map[pando.InstanceID]pando.InstanceUsage{}, map[pando.HostName]string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, h := range c.mirror.Hosts() {
		if !slices.Contains(of, h.Name) {
			continue
		}
		wg.Go(func() {
			all, err := c.peers.Usage(ctx, h, s)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out.failed[h.Name] = status.Unheard(h.Name, err)
			}
			for _, u := range all {
				if u.Host == h.Name { // a host speaks for its own instances
					out.of[u.Instance] = u
				}
			}
		})
	}
	wg.Wait()
	return out
}
