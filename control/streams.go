package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

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

// Logs implements pando.Operators.
func (c *streams) Logs(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, lines int, follow bool,
) (io.ReadCloser, error) {
	if i != "" {
		h, err := c.hostOf(i)
		if errors.Is(err, pando.ErrNotFound) {
			return c.logOfDead(ctx, s, i, lines)
		}
		if err != nil {
			return nil, err
		}
		return c.Peers.Logs(ctx, h, i, lines, follow)
	}
	st, err := c.Service(ctx, s)
	if err != nil {
		return nil, err
	}
	if len(st.Instances) == 0 {
		return c.newestDead(ctx, s, lines)
	}
	return c.everyLog(ctx, st, lines, follow)
}

// logOfDead looks for the log of an instance that is gone: first at the home of its service, then
// on every other host. Such a log does not grow, so it is never followed.
func (c *streams) logOfDead(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, lines int,
) (io.ReadCloser, error) {
	c.mu.Lock()
	var hosts []pando.Host
	for _, h := range c.world.Hosts {
		hosts = append(hosts, h.V)
	}
	home := c.world.Services[s].V.Home
	c.mu.Unlock()
	slices.SortFunc(hosts, func(a, b pando.Host) int {
		if (a.Name == home) != (b.Name == home) {
			return map[bool]int{true: -1, false: 1}[a.Name == home]
		}
		return strings.Compare(string(a.Name), string(b.Name))
	})
	missing := fmt.Errorf("instance %s: %w", i, pando.ErrNotFound)
	if strings.ContainsAny(string(i), `/*?[\`) { // a host looks for a folder of this name
		return nil, missing
	}
	for _, h := range hosts {
		log, err := c.Peers.Logs(ctx, h, i, lines, false)
		if err == nil {
			return log, nil
		}
		if !errors.Is(err, pando.ErrNotFound) {
			missing = fmt.Errorf("log of instance %s: %w", i, err)
		}
	}
	return nil, missing
}

// deadLooksMax is how many of the newest dead instances of a service are searched for a log.
const deadLooksMax = 3

// newestDead returns the log of the newest instance of a service without a living one. It is empty
// if no instance has printed anything.
func (c *streams) newestDead(
	ctx context.Context, s pando.ServiceKey, lines int,
) (io.ReadCloser, error) {
	c.mu.Lock()
	all := c.world.DecisionsOf(s)
	c.mu.Unlock()
	var dead []pando.InstanceID
	for _, d := range slices.Backward(all) {
		if d.Instance != "" && len(dead) < deadLooksMax && !slices.Contains(dead, d.Instance) {
			dead = append(dead, d.Instance)
		}
	}
	for _, i := range dead {
		log, err := c.logOfDead(ctx, s, i, lines)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(log)
		log.Close()
		if err != nil || len(text) == 0 {
			continue
		}
		var out bytes.Buffer
		fmt.Fprintf(&out, "%s  (it is gone; no instance of %s lives)\n", i, s)
		for line := range strings.Lines(string(text)) {
			fmt.Fprintf(&out, "%s  %s", i, line)
		}
		return io.NopCloser(&out), nil
	}
	return io.NopCloser(strings.NewReader("")), nil
}

// everyLog merges the logs of a service's instances and prefixes each line with its instance.
func (c *streams) everyLog(
	ctx context.Context, st pando.ServiceStatus, lines int, follow bool,
) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, i := range st.Instances {
		if i.Away != "" {
			wg.Go(func() {
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(w, "%s  (its log cannot be read now: %s)\n", i.ID, i.Away)
			})
			continue
		}
		h, err := c.hostOf(i.ID)
		if err != nil {
			continue
		}
		log, err := c.Peers.Logs(ctx, h, i.ID, lines, follow)
		if err != nil {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer log.Close()
			in := bufio.NewScanner(log)
			in.Buffer(nil, 1<<20)
			for in.Scan() {
				mu.Lock()
				_, err := fmt.Fprintf(w, "%s  %s\n", i.ID, in.Text())
				mu.Unlock()
				if err != nil {
					return
				}
			}
		}()
	}
	go func() {
		wg.Wait()
		w.Close()
	}()
	return closing{r, func() error { cancel(); return r.Close() }}, nil
}

type closing struct {
	io.Reader
	close func() error
}

func (c closing) Close() error { return c.close() }

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
