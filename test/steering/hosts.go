package steering

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
	"pando.run/pando/lab"
)

// OpenHost opens the driver of one of several hosts, in the network namespace of the caller. pins
// names its folder.
type OpenHost func(pins string, own [2]netip.Addr, uplinks ...string) (Subject, error)

// host is one of several hosts. The first is that of the test, with a client outside. It routes
// between the others, which are network namespaces.
type host struct {
	Subject
	slot  int
	ns    *lab.Box // nil: the first
	own   [2]netip.Addr
	boxes map[string]*lab.Box
	dead  bool
	door  net.HardwareAddr // of its link to the client; nil: the first
}

func (h *host) inside(f func() error) error {
	if h.ns == nil {
		return f()
	}
	return h.ns.Inside(f)
}

func (h *host) name() string { return fmt.Sprintf("h%d", h.slot+1) }

// estate is a service on several hosts.
type estate struct {
	t       *testing.T
	at      pando.BalanceAt
	outside *lab.Box
	hosts   []*host
	place   map[string]*host
	weights map[string]int
	silent  *host
	by      int // the family by which hosts reach each other: its place in host.own
}

func ownOf(slot int) [2]netip.Addr {
	return [2]netip.Addr{
		netip.AddrFrom4([4]byte{198, 51, 100, byte(slot + 1)}),
		netip.MustParseAddr(fmt.Sprintf("2001:db8:51::%d", slot+1)),
	}
}

func newEstate(t *testing.T, open OpenHost, hosts, by int) *estate {
	t.Helper()
	e := &estate{t: t, by: by, place: map[string]*host{}, weights: map[string]int{}}
	e.outside = box(t, "out", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"))
	uplinks := []string{"out"}
	for slot := range hosts {
		h := &host{slot: slot, own: ownOf(slot), boxes: map[string]*lab.Box{}}
		e.hosts = append(e.hosts, h)
		if slot > 0 {
			h.ns = box(t, h.name(), h.own[0], h.own[1])
			uplinks = append(uplinks, h.name())
			check(t, h.ns.Inside(func() error { return seeOthers(h, hosts) }))
			check(t, e.makeDoor(h))
		}
	}
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	for _, a := range e.hosts[0].own {
		check(t, netlink.AddrReplace(lo, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}))
	}
	for _, h := range e.hosts {
		up := uplinks
		if h.ns != nil {
			up = []string{"eth0", "door"}
		}
		check(t, h.inside(func() (err error) {
			h.Subject, err = open(h.name(), [2]netip.Addr{h.own[by], h.own[1]}, up...)
			return err
		}))
		t.Cleanup(func() {
			if err := h.inside(h.Purge); err != nil {
				t.Error(err)
			}
		})
	}
	for _, h := range e.hosts {
		e.introduce(h, e.hosts...)
	}
	return e
}

// seeOthers puts all hosts onto the link of a host. The first answers for the others.
func seeOthers(h *host, hosts int) error {
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	var errs []error
	for slot := range hosts {
		if slot == h.slot {
			continue
		}
		for _, a := range ownOf(slot) {
			errs = append(errs,
				netlink.RouteReplace(&netlink.Route{
					LinkIndex: eth.Attrs().Index, Dst: netlink.NewIPNet(a.AsSlice()),
					Scope: netlink.SCOPE_LINK,
				}),
				netlink.NeighSet(&netlink.Neigh{
					LinkIndex: eth.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(),
					HardwareAddr: h.ns.Link.HostMAC,
				}))
		}
	}
	return errors.Join(errs...)
}

// introduce gives a host the addresses of the others among these.
func (e *estate) introduce(h *host, others ...*host) {
	e.t.Helper()
	check(e.t, h.inside(func() error {
		return h.Neighbours(e.t.Context(), e.others(h, others...))
	}))
}

// others returns the records of these hosts, without that of a host itself.
func (e *estate) others(h *host, others ...*host) (list []pando.Host) {
	for _, o := range others {
		if o == h {
			continue
		}
		v4, v6 := pando.InstanceRange(o.slot)
		list = append(list, pando.Host{
			Name: pando.HostName(o.name()), Slot: o.slot, Address: o.own[e.by], Address6: o.own[1],
			Instances4: v4, Instances6: v6,
		})
	}
	return list
}

// join starts an instance on a host.
func (e *estate) join(slot int, name string, weight int) {
	e.t.Helper()
	h := e.hosts[slot]
	v4, v6 := pando.InstanceRange(slot)
	n := byte(len(h.boxes) + 2)
	ip4, ip6 := v4.Addr().As4(), v6.Addr().As16()
	ip4[3], ip6[15] = n, n
	var b *lab.Box
	check(e.t, h.inside(func() (err error) {
		b, err = lab.NewBox("pd"+name, netip.AddrFrom4(ip4), netip.AddrFrom16(ip6), vip[0], vip[1])
		if err == nil {
			err = h.Connect(e.t.Context(), b.Link, webPorts, vip[0], vip[1])
		}
		return err
	}))
	e.t.Cleanup(func() {
		if err := h.inside(b.Close); err != nil && !h.dead {
			e.t.Error(err)
		}
	})
	h.boxes[name], e.place[name], e.weights[name] = b, h, weight
	serve(e.t, b, name)
}

// table returns the table of a host. Instances of other hosts are remote endpoints.
func (e *estate) table(h *host) pando.SteeringTable {
	out := pando.SteeringTable{Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts, At: e.at}
	for name, weight := range e.weights {
		end := pando.Endpoint{Instance: pando.InstanceID(name), Weight: weight}
		if at := e.place[name]; at == h {
			end.Link = h.boxes[name].Link
		} else {
			end.Own4, end.Own6 = at.boxes[name].Link.IP4, at.boxes[name].Link.IP6
			end.Remote, end.Silent = at.own[e.by], at == e.silent
		}
		out.Endpoints = append(out.Endpoints, end)
	}
	slices.SortFunc(out.Endpoints, func(x, y pando.Endpoint) int {
		return slices.Compare([]byte(x.Instance), []byte(y.Instance))
	})
	return out
}

// publish publishes the table at every living host, in this order.
func (e *estate) publish(order ...*host) {
	e.t.Helper()
	if len(order) == 0 {
		order = e.hosts
	}
	for _, h := range order {
		if !h.dead {
			check(e.t, h.inside(func() error { return h.Publish(e.t.Context(), e.table(h)) }))
		}
	}
}

// kill takes a host from the network.
func (e *estate) kill(h *host) {
	e.t.Helper()
	h.dead = true
	l, err := netlink.LinkByName(h.name())
	check(e.t, err)
	check(e.t, netlink.LinkSetDown(l))
	for name, at := range e.place {
		if at == h {
			delete(e.weights, name)
		}
	}
}

// from runs a function at a place: outside, on a host, or in an instance.
func (e *estate) from(place string) func(func() error) error {
	for _, h := range e.hosts {
		if h.name() == place {
			return h.inside
		}
		if b := h.boxes[place]; b != nil {
			return b.Inside
		}
	}
	return e.outside.Inside
}

// dial connects to the VIP of a family from a place.
func (e *estate) dial(place string, six int) *client {
	e.t.Helper()
	var c *client
	err := e.from(place)(func() (err error) {
		c, err = dialTo(netip.AddrPortFrom(vip[six], 80))
		return err
	})
	if err != nil {
		e.t.Fatalf("from %s to %s: %v", place, vip[six], err)
	}
	e.t.Cleanup(c.drop)
	return c
}

// askUDP sends a datagram of a size from a place, and returns the first byte of its answer.
func (e *estate) askUDP(place string, six, size int) (byte, error) {
	var first byte
	err := e.from(place)(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(vip[six], 53).String())
		if err != nil {
			return err
		}
		defer c.Close()
		p := make([]byte, 1<<16)
		n, err := exchange(c, make([]byte, size), p)
		if err == nil && n != size {
			err = fmt.Errorf("the answer to %d bytes has %d", size, n)
		}
		first = p[0]
		return err
	})
	return first, err
}

func (h *host) flows(t *testing.T, name string) int {
	t.Helper()
	var r pando.SweepReport
	check(t, h.inside(func() (err error) { r, err = h.Sweep(t.Context()); return err }))
	return r.Flows[pando.InstanceID(name)]
}

func addrPort4(a [4]byte) netip.AddrPort { return at(netip.AddrFrom4(a), 1) }

func addrPort6(a [16]byte) netip.AddrPort { return at(netip.AddrFrom16(a), 1) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
