package status

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
	"pando.run/pando/control/decide"
	"pando.run/pando/control/mirror"
	"pando.run/pando/world"
)

// HostReader answers what operators ask about hosts.
type HostReader struct {
	Mirror *mirror.Mirror
	Peers  pando.Peers
	// Heard returns the time since the last message from the agent of a host with a lease, or is nil.
	Heard func(ctx context.Context, h pando.HostName) (time.Duration, error)
	// Answers reports whether the server of another host answers, or is nil.
	Answers func(ctx context.Context, at netip.Addr) bool
}

// Hosts implements pando.Operators.
func (r *HostReader) Hosts(ctx context.Context) ([]pando.HostStatus, error) {
	r.Mirror.Mu.RLock()
	all := map[pando.HostName]pando.HostStatus{}
	for name, m := range r.Mirror.World.Members {
		h := pando.Host{Name: name, Slot: m.V.Slot, Address: m.V.Address}
		h.Instances4, h.Instances6 = pando.InstanceRange(h.Slot)
		all[name] = pando.HostStatus{
			Host: h, State: pando.HostAway, Server: m.V.Server, Heard: r.Mirror.Left[name],
			Rights: m.V.Rights, Given: m.V.Grants, Drain: m.V.Drain,
		}
	}
	for name, h := range r.Mirror.World.Hosts {
		state := pando.HostHere
		if h.V.Frozen != "" {
			state = pando.HostFrozen
		}
		m := all[name]
		all[name] = pando.HostStatus{Host: h.V, State: state, Server: m.Server, Rights: m.Rights,
			Given: m.Given, Drain: m.Drain}
	}
	for name, h := range all {
		h.Instances = r.Mirror.World.CountOn(name)
		if h.Drain != nil {
			h.Staying = stayingText(Drain(r.Mirror, r.Mirror.World.Members[name].V))
		}
		all[name] = h
	}
	r.Mirror.Mu.RUnlock()
	var silent map[pando.HostName]bool
	var asking sync.WaitGroup
	asking.Go(func() { silent = r.silentServers(ctx, all) })
	losses, leads := r.losses(ctx), r.leads(ctx)
	asking.Wait()
	out := []pando.HostStatus{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		h := all[name]
		if h.State != pando.HostAway && r.Heard != nil {
			if ago, err := r.Heard(ctx, name); err == nil {
				h.Heard = r.Mirror.Clock.Now().Add(-ago)
			}
		}
		h.Losses, h.Unread, h.Leads = losses[name].of, losses[name].unread, name == leads
		h.SkewSeconds, h.ServerSilent = losses[name].skew, silent[name]
		out = append(out, h)
	}
	return out, nil
}

// Present returns a host with a lease.
func (r *HostReader) Present(h pando.HostName) (pando.Host, error) { return r.Mirror.Present(h) }

// HasHostAt reports whether a host of the cluster has an address.
func (r *HostReader) HasHostAt(at netip.Addr) bool {
	r.Mirror.Mu.RLock()
	defer r.Mirror.Mu.RUnlock()
	return r.Mirror.World.HasHostAt(at)
}

// leads returns the host of the leading control, or "".
func (r *HostReader) leads(ctx context.Context) (h pando.HostName) {
	at, err := r.Mirror.Registry.Snapshot(ctx, pando.LeaderKey("control"))
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
func (r *HostReader) losses(ctx context.Context) map[pando.HostName]report {
	ctx, cancel := context.WithTimeout(ctx, lossesWait)
	defer cancel()
	out := map[pando.HostName]report{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, h := range r.Mirror.Hosts() {
		asking.Go(func() {
			before := r.Mirror.Clock.Now()
			l, err := r.Peers.Losses(ctx, h)
			var got report
			switch {
			case err == nil:
				got.of = &l
			case errors.Is(err, pando.ErrUnreachable) || ctx.Err() != nil:
				return
			default:
				got.unread = Cut(err.Error())
			}
			if !l.Now.IsZero() {
				off := pando.SkewOf(l.Now, before, r.Mirror.Clock.Now()).Seconds()
				got.skew = &off
			}
			mu.Lock()
			defer mu.Unlock()
			out[h.Name] = got
		})
	}
	asking.Wait()
	return out
}

// silentServers asks the other servers of the cluster whether they answer, and returns those that do
// not. A host that is away has no server either.
func (r *HostReader) silentServers(
	ctx context.Context, all map[pando.HostName]pando.HostStatus,
) map[pando.HostName]bool {
	if r.Answers == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lossesWait)
	defer cancel()
	out := map[pando.HostName]bool{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for name, h := range all {
		if !h.Server || string(name) == r.Mirror.Name || !h.Address.IsValid() {
			continue
		}
		asking.Go(func() {
			if !r.Answers(ctx, h.Address) {
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

// Drain returns what is left on a host. The caller holds the lock.
func Drain(in *mirror.Mirror, m pando.Member) pando.HostDrainStatus {
	st := pando.HostDrainStatus{Host: m.Name, Drain: m.Drain, Left: []pando.HostLeft{}}
	_, st.Here = in.World.Hosts[m.Name]
	drafts := map[pando.ServiceKey]*decide.Draft{}
	on := in.World.On(m.Name)
	slices.SortStableFunc(on, func(a, b pando.Instance) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.ID, b.ID))
	})
	for _, i := range on {
		d, made := drafts[i.Service]
		if !made {
			d, _ = decide.About(in.World, i.Service, in.Clock.Now(), in.IDs)
			drafts[i.Service] = d
		}
		left := pando.HostLeft{Service: i.Service, Instance: i.ID}
		if left.Reason, left.Stays = d.Left(i); left.Stays {
			st.Stays++
		}
		if st.Count++; len(st.Left) < pando.HostLeftMax {
			st.Left = append(st.Left, left)
		}
	}
	return st
}
