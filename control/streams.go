package control

import (
	"context"
	"errors"
	"fmt"
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
		watch, end := context.WithCancel(ctx)
		defer end()
		first := pando.Change{Revision: after, Kind: pando.KindBookmark}
		passOn(ctx, out, first, c.Registry.Watch(watch, pando.Root, after), end)
	}()
	return out
}

// changesWaiting bounds the changes that wait for a slow listener. The store's client would
// otherwise keep any number of them in memory.
const changesWaiting = 4096

// passOn sends changes to a listener, until the watch or ctx ends. It ends the watch when too many
// changes wait. The listener then still gets the changes of whole commits, and at last the reason.
func passOn(
	ctx context.Context, out chan<- pando.Change, first pando.Change, in <-chan pando.Batch,
	end func(),
) {
	queue := []pando.Change{first}
	for in != nil || len(queue) > 0 {
		var to chan<- pando.Change
		var next pando.Change
		if len(queue) > 0 {
			to, next = out, queue[0]
		}
		select {
		case to <- next:
			queue = queue[1:]
		case b, ok := <-in:
			if !ok {
				in = nil
				continue
			}
			if queue = append(queue, changes(b)...); len(queue) > changesWaiting {
				end()
				in = nil
				queue = append(queue, pando.Change{Revision: b.Revision, Err: fmt.Errorf(
					"%w: this listener is %d changes behind and is let go; resume after the last event",
					pando.ErrUnavailable, len(queue))})
			}
		case <-ctx.Done():
			return
		}
	}
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
		if change.Kind == pando.KindLeader || change.Kind == pando.KindSecret ||
			change.Kind == pando.KindTenant || change.Kind == pando.KindToken ||
			change.Kind == pando.KindBill || change.Kind == pando.KindMark ||
			change.Kind == pando.KindRest {
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
	return slices.Clone(c.counters.recent(ctx)[s]), nil
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
