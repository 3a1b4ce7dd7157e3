package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
	"pando.run/pando/world"
)

// hosts answers what operators ask about hosts.
type hosts struct {
	mirror *mirror.Mirror
	peers  pando.Peers
	// heard returns the time since the last message from the agent of a host with a lease, or is nil.
	heard func(ctx context.Context, h pando.HostName) (time.Duration, error)
	// answers reports whether the server of another host answers, or is nil.
	answers func(ctx context.Context, at netip.Addr) bool
}

// Hosts implements pando.Operators.
func (c *hosts) Hosts(ctx context.Context) ([]pando.HostStatus, error) {
	c.mirror.Mu.RLock()
	all := map[pando.HostName]pando.HostStatus{}
	for name, m := range c.mirror.World.Members {
		h := pando.Host{Name: name, Slot: m.V.Slot, Address: m.V.Address}
		h.Instances4, h.Instances6 = pando.InstanceRange(h.Slot)
		all[name] = pando.HostStatus{
			Host: h, State: pando.HostAway, Server: m.V.Server, Heard: c.mirror.Left[name],
			Rights: m.V.Rights, Given: m.V.Grants, Drain: m.V.Drain,
		}
	}
	for name, h := range c.mirror.World.Hosts {
		state := pando.HostHere
		if h.V.Frozen != "" {
			state = pando.HostFrozen
		}
		m := all[name]
		all[name] = pando.HostStatus{Host: h.V, State: state, Server: m.Server, Rights: m.Rights,
			Given: m.Given, Drain: m.Drain}
	}
	for name, h := range all {
		h.Instances = c.mirror.World.CountOn(name)
		if h.Drain != nil {
			h.Staying = stayingText(hostDrain(c.mirror, c.mirror.World.Members[name].V))
		}
		all[name] = h
	}
	c.mirror.Mu.RUnlock()
	var silent map[pando.HostName]bool
	var asking sync.WaitGroup
	asking.Go(func() { silent = c.silentServers(ctx, all) })
	losses, leads := c.losses(ctx), c.leads(ctx)
	asking.Wait()
	out := []pando.HostStatus{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		h := all[name]
		if h.State != pando.HostAway && c.heard != nil {
			if ago, err := c.heard(ctx, name); err == nil {
				h.Heard = c.mirror.Clock.Now().Add(-ago)
			}
		}
		h.Losses, h.Unread, h.Leads = losses[name].of, losses[name].unread, name == leads
		h.SkewSeconds, h.ServerSilent = losses[name].skew, silent[name]
		out = append(out, h)
	}
	return out, nil
}

// Present returns a host with a lease.
func (c *hosts) Present(h pando.HostName) (pando.Host, error) { return c.mirror.Present(h) }

// HasHostAt reports whether a host of the cluster has an address.
func (c *hosts) HasHostAt(at netip.Addr) bool {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	return c.mirror.World.HasHostAt(at)
}

// leads returns the host of the leading control, or "".
func (c *hosts) leads(ctx context.Context) (h pando.HostName) {
	at, err := c.mirror.Registry.Snapshot(ctx, pando.LeaderKey("control"))
	if err != nil {
		return ""
	}
	for _, r := range at.Records {
		if r.Key == pando.LeaderKey("control") && world.Decode(r, &h) != nil {
			return ""
		}
	}
	return h
}

// lossesWait bounds how long hosts may take to report their losses.
const lossesWait = 300 * time.Millisecond

// report is the answer of a host.
type report struct {
	of     *pando.Losses
	skew   *float64
	unread string // why its losses are not known
}

// losses asks every host for its lost packets and its time. A host that does not answer is left out;
// one that answers with an error has a report of it.
func (c *hosts) losses(ctx context.Context) map[pando.HostName]report {
	ctx, cancel := context.WithTimeout(ctx, lossesWait)
	defer cancel()
	out := map[pando.HostName]report{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, h := range c.mirror.Hosts() {
		asking.Go(func() {
			before := c.mirror.Clock.Now()
			l, err := c.peers.Losses(ctx, h)
			var r report
			switch {
			case err == nil:
				r.of = &l
			case errors.Is(err, pando.ErrUnreachable) || ctx.Err() != nil:
				return
			default:
				r.unread = cut(err.Error())
			}
			if !l.Now.IsZero() {
				off := pando.SkewOf(l.Now, before, c.mirror.Clock.Now()).Seconds()
				r.skew = &off
			}
			mu.Lock()
			defer mu.Unlock()
			out[h.Name] = r
		})
	}
	asking.Wait()
	return out
}

// silentServers asks the other servers of the cluster whether they answer, and returns those that do
// not. A host that is away has no server either.
func (c *hosts) silentServers(
	ctx context.Context, all map[pando.HostName]pando.HostStatus,
) map[pando.HostName]bool {
	if c.answers == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lossesWait)
	defer cancel()
	out := map[pando.HostName]bool{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for name, h := range all {
		if !h.Server || string(name) == c.mirror.Name || !h.Address.IsValid() {
			continue
		}
		asking.Go(func() {
			if !c.answers(ctx, h.Address) {
				mu.Lock()
				defer mu.Unlock()
				out[name] = true
			}
		})
	}
	asking.Wait()
	return out
}

// awayNote returns a note that the host of an instance is away. The instance's own record does not
// show that.
func awayNote(left map[pando.HostName]time.Time, h pando.HostName) string {
	if since, ok := left[h]; ok {
		return fmt.Sprintf("host %s is away since %s", h, since.UTC().Format("15:04:05Z"))
	}
	return fmt.Sprintf("host %s is away", h)
}

// stayingText names the services that stay on a drained host, with the reason of the first, or "".
func stayingText(st pando.HostDrainStatus) string {
	var names []string
	why := ""
	for _, left := range st.Left {
		if left.Stays {
			names, why = append(names, left.Service.String()), cmp.Or(why, left.Reason)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %s", pando.Few(slices.Compact(names)), why)
}
