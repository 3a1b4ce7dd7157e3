package steering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
	"pando.run/pando/driver/network/ebpf"
)

// hasTunnel reports whether this network namespace has the tunnel's device, and whether its port is
// open.
func hasTunnel(t *testing.T) (device, port bool) {
	t.Helper()
	_, err := netlink.LinkByName(ebpf.TunnelDevice)
	text, rerr := os.ReadFile("/proc/thread-self/net/udp")
	check(t, rerr)
	return err == nil, strings.Contains(string(text), fmt.Sprintf(":%04X ", pando.TunnelPort))
}

// aloneHasNoTunnel checks that a host without others opens no port, and that the tunnel comes back
// with the others.
func aloneHasNoTunnel(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.publish()
	e.dial("outside", 0).who(t)
	h := e.hosts[0]
	if device, port := hasTunnel(t); !device || !port {
		t.Fatalf("with two other hosts: device %v, port %v", device, port)
	}
	e.introduce(h)
	check(t, ebpf.Tunnels())
	if device, port := hasTunnel(t); device || port {
		t.Errorf("after the last host went: device %v, port %v", device, port)
	}
	e.introduce(h, e.hosts...)
	e.publish(h)
	for six := range 2 {
		c := e.dial("outside", six)
		if name := c.who(t); name != "b" {
			t.Errorf("after the hosts came back, a connection to %s is answered by %q", vip[six], name)
		}
	}
}

// mending mends the devices of the first host until the test ends.
func mending(t *testing.T, e *estate) {
	t.Helper()
	d, ok := e.hosts[0].Subject.(interface{ Mend(context.Context) error })
	if !ok {
		t.Fatal("the driver does not mend its devices")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Mend(ctx) }()
	t.Cleanup(func() { // before the driver is purged
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// lives reports whether the server of a connection answers.
func (c *client) lives() bool {
	_, err := c.ask("who")
	return err == nil
}

// deletedIsMadeAgain checks that connections survive the loss of the tunnel and of pando0.
func deletedIsMadeAgain(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.publish()
	mending(t, e)
	kept := []*client{e.dial("outside", 0), e.dial("outside", 1), e.dial("h1", 0), e.dial("h1", 1)}
	for _, c := range kept {
		c.who(t)
	}
	for _, name := range []string{ebpf.TunnelDevice, ebpf.Device, ebpf.TunnelDevice} {
		for what, harm := range map[string]func(netlink.Link) error{
			"deleted": netlink.LinkDel, "set down": netlink.LinkSetDown,
		} {
			l, err := netlink.LinkByName(name)
			check(t, err)
			check(t, harm(l))
			for n, c := range kept {
				eventually(t, fmt.Sprintf("connection %d lives after %s was %s", n, name, what), c.lives)
			}
			for _, place := range []string{"outside", "h1"} {
				if by := e.dial(place, 0).who(t); by != "b" {
					t.Errorf("after %s was %s, %s is answered by %q", name, what, place, by)
				}
			}
		}
	}
}

// outOfReachFailsAlone checks that a publication leaves out the hosts to which there is no way, and
// that its repetition includes them once there is one.
func outOfReachFailsAlone(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(2, "c", 100)
	h, away := e.hosts[0], e.hosts[2]
	to := &netlink.Route{Dst: netlink.NewIPNet(away.own[0].AsSlice())}
	ways, err := netlink.RouteListFiltered(netlink.FAMILY_V4, to, netlink.RT_FILTER_DST)
	check(t, err)
	if len(ways) != 1 {
		t.Fatalf("%d routes to the third host, want 1", len(ways))
	}
	check(t, netlink.RouteDel(&ways[0]))
	if err := h.Neighbours(t.Context(), e.others(h, e.hosts...)); err == nil {
		t.Error("no error about a host without a way")
	}
	e.publish(e.hosts[1:]...)
	err = h.Publish(t.Context(), e.table(h))
	if u, ok := errors.AsType[*pando.UnreachedError](err); !ok || len(u.Hosts) != 1 ||
		u.Hosts[0] != away.own[0] {
		t.Fatalf("without a way to one host: %v", err)
	}
	for n := range 20 {
		c := e.dial("outside", n%2)
		if name := c.who(t); name != "b" {
			t.Fatalf("without a way to the host of c, a connection is answered by %q", name)
		}
	}
	check(t, netlink.RouteAdd(&ways[0]))
	e.introduce(h, e.hosts...)
	e.publish(h)
	eventually(t, "c gets connections again", func() bool {
		c := e.dial("outside", 0)
		return c.who(t) == "c"
	})
}
