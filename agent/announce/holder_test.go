package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/edge"
)

// town is a network of holders that reach each other by calls.
type town struct {
	t       *testing.T
	holders map[pando.HostName]*resident
}

// resident is one herald with its view of the others.
type resident struct {
	*Holder
	town  *town
	name  pando.HostName
	end   context.CancelFunc
	clock pauser

	mu        sync.Mutex
	view      View
	changed   chan struct{}
	err       error // of every take that it gets
	announced []netip.Addr
	learned   []edge.InstanceFlows
	serving   bool
	viewed    func() // runs once, between the next read of the view and its use
	asked     func() // runs once, within the next take that it gets
}

func newTown(t *testing.T, names ...pando.HostName) *town {
	town := &town{t: t, holders: map[pando.HostName]*resident{}}
	for _, name := range names {
		town.holders[name] = &resident{town: town, name: name, changed: make(chan struct{})}
	}
	for _, name := range names {
		town.make(name, names...)
	}
	for _, name := range names {
		town.start(name)
	}
	return town
}

// make makes a holder that sees some hosts.
func (o *town) make(name pando.HostName, sees ...pando.HostName) {
	r := o.holders[name]
	r.view = viewOf(name, sees...)
	r.Holder = New(Config{
		Own: name, Announcer: r, Peers: r, Flows: r, Source: r, Clock: &r.clock,
		Log: slog.New(slog.DiscardHandler),
	})
}

func (o *town) start(name pando.HostName) {
	r := o.holders[name]
	var ctx context.Context
	ctx, r.end = context.WithCancel(o.t.Context())
	go r.Run(ctx)
}

func viewOf(own pando.HostName, sees ...pando.HostName) View {
	v := View{Segment: "192.0.2.0/24", Dead: map[string]bool{}, At: 1}
	for _, name := range sees {
		v.Hosts = append(v.Hosts, name)
		if name != own {
			v.Others = append(v.Others, pando.Host{Name: name})
		}
	}
	slices.Sort(v.Hosts)
	return v
}

// sees changes the view of a holder.
func (r *resident) sees(f func(*View)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.view
	next.Dead = map[string]bool{}
	for h := range r.view.Dead {
		next.Dead[h] = true
	}
	next.Hosts, next.Others = slices.Clone(r.view.Hosts), slices.Clone(r.view.Others)
	f(&next)
	r.view = next
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *resident) finds(dead ...string) {
	r.sees(func(v *View) {
		v.Dead = map[string]bool{}
		for _, h := range dead {
			v.Dead[h] = true
		}
	})
}

func (r *resident) View() View {
	v, then := r.read()
	then()
	return v
}

func (r *resident) read() (v View, then func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view, once(&r.viewed)
}

// once takes a hook out of its place.
func once(hook *func()) func() {
	f := *hook
	*hook = nil
	if f == nil {
		return func() {}
	}
	return f
}

func (r *resident) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *resident) VIPs(s edge.Shares) (all []netip.Addr) {
	for n := range s.All() {
		all = append(all, vipOf(n))
	}
	return all
}

func vipOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 127, 3, byte(n)}) }

func (r *resident) Serve(ctx context.Context, _ func(netip.Addr) bool) error {
	r.mu.Lock()
	r.serving = true
	r.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (r *resident) Announce(vips []netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.announced = append(r.announced, vips...)
	return nil
}

func (r *resident) TakeVIPs(
	ctx context.Context, h pando.Host, t edge.VIPTake,
) (g edge.VIPGrant, err error) {
	to := r.town.holders[h.Name]
	to.mu.Lock()
	err = to.err
	asked := once(&to.asked)
	to.mu.Unlock()
	asked()
	if errors.Is(err, context.DeadlineExceeded) {
		<-ctx.Done()
		return g, ctx.Err()
	}
	if err != nil {
		return g, err
	}
	if t.Offers {
		to.Offered(t)
		return g, nil
	}
	g.Refused = to.Grant(t)
	g.Flows = []edge.InstanceFlows{{Instance: pando.InstanceID("of-" + h.Name)}}
	return g, nil
}

func (r *resident) OpenFlows(context.Context, edge.Shares) ([]edge.InstanceFlows, error) {
	return nil, nil
}

func (r *resident) LearnFlows(_ context.Context, all []edge.InstanceFlows) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.announced) == 0 || len(r.learned) == 0 {
		r.learned = append(r.learned, all...)
	}
	return len(all), nil
}

func (r *resident) fails(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// answering returns the host that answers for each share now. It fails if two hosts do.
func (o *town) answering() (of [edge.VIPShares]pando.HostName, dark int) {
	o.t.Helper()
	for n := range of {
		for name, r := range o.holders {
			if r.Holder == nil || !r.answers(vipOf(n)) {
				continue
			}
			if of[n] != "" {
				o.t.Fatalf("%s and %s both answer for share %d", of[n], name, n)
			}
			of[n] = name
		}
		if of[n] == "" {
			dark++
		}
	}
	return of, dark
}

// settle waits in virtual time until each VIP has an answer, and returns how long that took. No two
// hosts answer at any time.
func (o *town) settle(most time.Duration) time.Duration {
	o.t.Helper()
	began := time.Now()
	for {
		synctest.Wait()
		_, dark := o.answering()
		if dark == 0 {
			return time.Since(began)
		}
		if time.Since(began) > most {
			o.t.Fatalf("%d shares are dark after %s", dark, most)
		}
		time.Sleep(time.Millisecond)
	}
}

// watch lets virtual time pass. No two hosts answer at any time.
func (o *town) watch(d time.Duration) {
	o.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		synctest.Wait()
		o.answering()
	}
}

func held(r *resident) int { s, _ := r.Held(); return s.Len() }

func TestEachVIPHasOneHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b", "c")
		o.settle(time.Second)
		for name, r := range o.holders {
			if held(r) < 40 || !r.serving || len(r.announced) < held(r) {
				t.Errorf("%s holds %d shares, announced %d", name, held(r), len(r.announced))
			}
		}
	})
}

// A dead host's VIPs have an answer at once, from hosts that learned the flows of all others.
func TestADeadHostsVIPsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b", "c")
		o.settle(time.Second)
		a, b, c := o.holders["a"], o.holders["b"], o.holders["c"]
		c.fails(context.DeadlineExceeded)
		c.end()
		c.Holder = nil
		b.announced, b.learned = nil, nil
		a.finds("c")
		b.finds("c")
		if took := o.settle(time.Second); took > 50*time.Millisecond {
			t.Errorf("VIPs were dark for %s after the verdict", took)
		}
		if len(b.announced) == 0 || len(b.learned) == 0 || b.learned[0].Instance != "of-a" {
			t.Errorf("b announced %d VIPs and learned %v", len(b.announced), b.learned)
		}
		if _, why := b.Held(); why != "dead by the probes: c" {
			t.Errorf("the reason is %q", why)
		}
	})
}

// A host that the others find dead, and that lives: it falls silent for itself, and comes back only
// after the others have left its VIPs. Never do two hosts answer.
func TestACutHostFallsSilentAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b", "c")
		o.settle(time.Second)
		a, b, c := o.holders["a"], o.holders["b"], o.holders["c"]
		for _, r := range o.holders {
			r.fails(context.DeadlineExceeded)
		}
		c.finds("a", "b") // the smaller side
		o.watch(100 * time.Millisecond)
		if held(c) != 0 {
			t.Fatalf("a host that sees one of three holds %d shares", held(c))
		}
		a.fails(nil)
		b.fails(nil)
		a.finds("c")
		b.finds("c")
		o.settle(2 * time.Second)
		c.fails(nil)
		c.finds() // it sees the others first
		o.watch(2 * time.Second)
		if held(c) != 0 {
			t.Errorf("it took %d shares from hosts that find it dead", held(c))
		}
		a.finds()
		b.finds()
		o.settle(time.Second)
		o.watch(time.Second)
		if held(c) < 40 {
			t.Errorf("it came back with %d shares", held(c))
		}
	})
}

// A host that leaves answers until another one has taken its VIPs.
func TestALeavingHostHandsItsVIPsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b")
		o.settle(time.Second)
		a, b := o.holders["a"], o.holders["b"]
		left := func(v *View) { v.Hosts = []pando.HostName{"a"} }
		b.sees(left)
		o.watch(time.Second)
		if held(b) == 0 {
			t.Error("b left its VIPs before another host took them")
		}
		a.sees(left)
		o.settle(time.Second)
		if held(b) != 0 || held(a) != edge.VIPShares {
			t.Errorf("a holds %d shares, b %d", held(a), held(b))
		}
	})
}

// A host that is cut from the store alone still sees itself among the hosts. A host with a newer
// view takes its VIPs; one with an older view does not.
func TestALeaseThatEndedCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a", "b")
		o.settle(time.Second)
		a, b := o.holders["a"], o.holders["b"]
		without := func(at pando.StoreRevision) func(*View) {
			return func(v *View) { v.Hosts, v.Others, v.At = []pando.HostName{"a"}, nil, at }
		}
		a.sees(without(1))
		o.watch(time.Second)
		if held(b) == 0 {
			t.Error("b obeyed a view that is no newer than its own")
		}
		a.sees(without(2))
		o.settle(time.Second)
		o.watch(time.Second)
		if held(b) != 0 {
			t.Errorf("b holds %d shares after its lease", held(b))
		}
	})
}

// The end of an agent leaves no doubt: its kernel refuses the take. An earlier build has no such
// question. A host that does not answer at all may answer for VIPs.
func TestOnlySilenceIsDoubt(t *testing.T) {
	for _, c := range []struct {
		err   error
		takes bool
	}{
		{fmt.Errorf("dial: %w", syscall.ECONNREFUSED), true},
		{fmt.Errorf("it answered 404: %w", pando.ErrNotFound), true},
		{context.DeadlineExceeded, false},
		{pando.ErrUnavailable, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := &town{t: t, holders: map[pando.HostName]*resident{}}
			for _, name := range []pando.HostName{"a", "b"} {
				o.holders[name] = &resident{town: o, name: name, changed: make(chan struct{})}
			}
			o.holders["b"].fails(c.err)
			o.make("a", "a", "b")
			o.start("a")
			o.watch(2 * time.Second)
			if got := held(o.holders["a"]) > 0; got != c.takes {
				t.Errorf("%v: takes = %v", c.err, got)
			}
		})
	}
}

func TestTheGatewayIsNoVIPOfOneHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, "a")
		o.settle(time.Second)
		if a := o.holders["a"]; a.answers(pando.Gateway4) || a.answers(pando.Gateway6) {
			t.Error("it answers for the gateway, which each host has")
		}
	})
}
