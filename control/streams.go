package control

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/world"
)

// streams passes changes of the store, and logs, counters and states of the hosts, to operators.
type streams struct {
	*view
	counters *counters
}

// Watch implements pando.Operators. Its first event is a bookmark. A caller that starts with "from
// now on" thus gets a revision to resume from, even if the stream breaks before the first change.
func (c *streams) Watch(ctx context.Context, after pando.StoreRevision) <-chan pando.Change {
	c.mu.Lock()
	if after == 0 {
		after = c.world.Seen
	}
	c.mu.Unlock()
	out := make(chan pando.Change, 64)
	go func() {
		defer close(out)
		out <- pando.Change{Revision: after, Kind: pando.KindBookmark} // the channel has room for it
		for b := range c.Registry.Watch(ctx, pando.Root, after) {
			for _, change := range changes(b) {
				select {
				case out <- change:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func changes(b pando.Batch) []pando.Change {
	if b.Err != nil {
		return []pando.Change{{Revision: b.Revision, Err: b.Err}}
	}
	var out []pando.Change
	for _, r := range b.Changes {
		change := pando.Change{
			Revision: b.Revision, Kind: r.Key.Kind(), Key: r.Key, Deleted: r.Value == nil, More: true,
		}
		if change.Kind == pando.KindLeader {
			continue
		}
		if r.Value != nil {
			v, err := world.DecodeAny(r)
			if err != nil || v == nil {
				continue
			}
			change.Value = v
		}
		out = append(out, change)
	}
	if len(out) > 0 {
		out[len(out)-1].More = false
	}
	return out
}

// Counters implements pando.Operators.
func (c *streams) Counters(
	ctx context.Context, s pando.ServiceKey,
) ([]pando.EndpointCounters, error) {
	if _, err := c.Service(ctx, s); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(c.counters.recent(ctx)),
		func(e pando.EndpointCounters) bool { return e.Service != s }), nil
}

// StateLog implements pando.Operators.
func (c *streams) StateLog(
	ctx context.Context, s pando.ServiceKey, most int,
) ([]pando.StateCommit, error) {
	h, err := c.stateHost(s)
	if err != nil {
		return nil, err
	}
	return c.Peers.StateLog(ctx, h, s, most)
}

// State implements pando.Operators. It forwards /state/NAME.git/… and /state/TENANT/NAME.git/… to
// the host that has the state.
func (c *streams) State() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/state/"), ".git/")
		s, err := pando.ParseServiceKey(name)
		if !ok || err != nil {
			http.Error(w, "want /state/NAME.git or /state/TENANT/NAME.git", http.StatusNotFound)
			return
		}
		h, err := c.stateHost(s)
		switch {
		case errors.Is(err, pando.ErrNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			c.Peers.State(h).ServeHTTP(w, r)
		}
	})
}
