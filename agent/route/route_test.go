package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// town is a host with its routers and its view, which a test sets.
type town struct {
	*Announcer
	stop func()

	mu     sync.Mutex
	view   View
	others bool // sighted
	asks   int
	ends   bool
	has    map[netip.Addr]bool
	writes int
	open   bool
	left   string // "withdrawn" and whether, at the end
	fails  error
}

func (o *town) View() View {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.view
}

func (o *town) Sighted(context.Context) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asks++
	return o.others
}

func (o *town) Changed() <-chan struct{} { return nil }

func (o *town) Serve(ctx context.Context, withdraws func() bool) error {
	o.set(func() { o.open = true })
	<-ctx.Done()
	gone := withdraws()
	o.set(func() { o.open, o.left = false, fmt.Sprintf("withdrawn %v", gone) })
	return nil
}

func (o *town) Announce(vips []netip.Addr) error { return o.write(vips, true) }
func (o *town) Withdraw(vips []netip.Addr) error { return o.write(vips, false) }

func (o *town) write(vips []netip.Addr, there bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fails != nil {
		return o.fails
	}
	for _, vip := range vips {
		o.writes++
		if o.has[vip] == there {
			return fmt.Errorf("%s: announced %v already", vip, there)
		}
		if o.has[vip] = there; !there {
			delete(o.has, vip)
		}
	}
	return nil
}

func (o *town) Status() []pando.RouterStatus { return []pando.RouterStatus{{Up: true}} }

func (o *town) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// newTown runs the announcer of a host that is one of three.
func newTown(t *testing.T) *town {
	o := &town{view: View{Ready: true, Hosts: 3}, has: map[netip.Addr]bool{}}
	o.Announcer = New(Config{
		Routers: o, Source: o, Clock: clock.Clock{}, Log: slog.New(slog.DiscardHandler),
		Ends: func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.ends
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { o.Run(ctx) })
	o.stop = func() { cancel(); run.Wait() }
	t.Cleanup(o.stop)
	return o
}

func vipOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 127, byte(n >> 8), byte(n)}) }

var far = netip.MustParseAddr("192.0.2.2")

// steered publishes a table of a service with one instance, here or on a host.
func (o *town) steered(n int, remote netip.Addr, lost ...netip.Addr) {
	s := pando.ServiceKey{Tenant: "default", Name: pando.ServiceName(fmt.Sprintf("s%d", n))}
	o.Steered(pando.SteeringTable{Service: s, VIP4: vipOf(n),
		Endpoints: []pando.Endpoint{{Weight: 1, Remote: remote}}}, lost, false)
}

func (o *town) gone(n int) {
	s := pando.ServiceKey{Tenant: "default", Name: pando.ServiceName(fmt.Sprintf("s%d", n))}
	o.Steered(pando.SteeringTable{Service: s}, nil, true)
}

// announces checks after some time that the routers have exactly the VIPs of some services.
func (o *town) announces(t *testing.T, within time.Duration, want ...int) {
	t.Helper()
	time.Sleep(within)
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	got := slices.SortedFunc(maps.Keys(o.has), netip.Addr.Compare)
	wanted := []netip.Addr{}
	for _, n := range want {
		wanted = append(wanted, vipOf(n))
	}
	if !slices.Equal(got, wanted) {
		t.Errorf("the routers have %v, want %v", got, wanted)
	}
}

func TestVIPsFollowTheTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t)
		o.steered(1, netip.Addr{})
		o.steered(2, far)
		o.announces(t, 0, 1, 2)
		o.steered(2, far, far) // no way to its only instance
		o.announces(t, 0, 1)
		if is := o.Routes(); is.VIPs != 1 || is.Unable != 1 || is.Why != "" || !is.Routers[0].Up {
			t.Errorf("the routes are %+v", is)
		}
		o.steered(2, far)
		o.announces(t, 0, 1, 2)
		o.gone(1)
		o.announces(t, 0, 2)
		before := o.writes
		o.steered(2, netip.Addr{}) // another table of the same VIP
		o.announces(t, time.Second, 2)
		if o.writes != before {
			t.Errorf("a table with the same VIP cost %d writes", o.writes-before)
		}
		o.gone(2)
		o.announces(t, 0)
		if is := o.Routes(); is.VIPs != 0 || is.Unable != 0 {
			t.Errorf("the routes are %+v", is)
		}
	})
}

// Sessions begin when all tables are in force: a router takes the first word after a restart for
// the whole.
func TestSessionsWaitForTheTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t)
		o.stop()
		o = newTown(t)
		o.set(func() { o.view.Ready = false })
		o.steered(1, netip.Addr{})
		time.Sleep(time.Minute)
		synctest.Wait()
		if o.open {
			t.Error("a session is open before the tables are in force")
		}
		o.set(func() { o.view.Ready = true })
		o.announces(t, beatEvery, 1)
		if !o.open {
			t.Error("no session is open although the tables are in force")
		}
		o.set(func() { o.view.Ready = false }) // a later change is at work
		o.steered(2, netip.Addr{})
		o.announces(t, 0, 1, 2)
	})
}

// A host as a whole withdraws all VIPs, and announces them again.
func TestAHostThatMayNotServeAnnouncesNothing(t *testing.T) {
	for name, change := range map[string]func(*town){
		"it leaves":                func(o *town) { o.view.Leaving = true },
		"it reaches 1 of 3 hosts":  func(o *town) { o.view.Dead = 2 },
		"others follow the store":  func(o *town) { o.view.Blind, o.others = "the store is older", true },
		"and it does not: the sto": func(o *town) { o.view.Blind, o.others = "the store is older", true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTown(t)
				o.steered(1, netip.Addr{})
				o.steered(2, netip.Addr{})
				o.announces(t, 0, 1, 2)
				before := o.View()
				o.set(func() { change(o) })
				o.announces(t, beatEvery)
				if is := o.Routes(); !strings.Contains(is.Why, name) {
					t.Errorf("the reason is %q, want %q", is.Why, name)
				}
				o.steered(3, netip.Addr{})
				o.announces(t, time.Second)
				o.set(func() { o.view = before })
				o.announces(t, beatEvery, 1, 2, 3)
			})
		})
	}
}

// All hosts may have lost the store. Then each keeps its routes, and asks once a second whether
// another sees more.
func TestAHostThatIsBlindLikeAllKeepsItsRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t)
		o.steered(1, netip.Addr{})
		o.set(func() { o.view.Blind = "the store is empty" })
		o.announces(t, 10*time.Second, 1)
		if o.asks < 9 || o.asks > 12 {
			t.Errorf("it asked %d times in 10s, want once a second", o.asks)
		}
		if is := o.Routes(); is.Blind == "" || is.Why != "" {
			t.Errorf("the routes are %+v", is)
		}
		o.set(func() { o.others = true })
		o.announces(t, askEvery+beatEvery)
		o.set(func() { o.others = false }) // the other one may see it as blind too
		o.announces(t, 10*time.Second)
	})
}

func TestTheEndOfAnAgentKeepsItsRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*town)
		want   string
	}{
		"a restart": {func(*town) {}, "withdrawn false"},
		"a leave":   {func(o *town) { o.view.Leaving = true }, "withdrawn true"},
		"down":      {func(o *town) { o.ends = true }, "withdrawn true"},
		"a start":   {func(o *town) { o.view.Ready = false }, "withdrawn false"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTown(t)
				o.set(func() { c.change(o) })
				synctest.Wait()
				o.stop()
				if o.left != c.want {
					t.Errorf("the routes are %q, want %q", o.left, c.want)
				}
			})
		})
	}
}

func TestAFailedChangeIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t)
		o.set(func() { o.fails = errors.New("no") })
		o.steered(1, netip.Addr{})
		o.announces(t, time.Second)
		o.set(func() { o.fails = nil })
		o.announces(t, beatEvery, 1)
	})
}

// A change of one service among 10,000 costs one write.
func TestAChangeCostsOneRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t)
		all := []int{}
		for n := range 10_000 {
			o.steered(n, netip.Addr{})
			all = append(all, n)
		}
		o.announces(t, beatEvery, all...)
		before := o.writes
		o.gone(9_999)
		o.announces(t, beatEvery, all[:9_999]...)
		if o.writes != before+1 {
			t.Errorf("the end of one service cost %d writes, want 1", o.writes-before)
		}
	})
}
