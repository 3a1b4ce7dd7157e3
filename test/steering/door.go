package steering

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// makeDoor makes a link from the client outside to a host, beside the way by the first host.
func (e *estate) makeDoor(h *host) error {
	ns, err := netns.GetFromPath(h.ns.Link.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = e.outside.Inside(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "door",
			PeerNamespace: netlink.NsFd(int(ns))}
		veth.Name = h.name()
		return errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth))
	})
	if err != nil {
		return err
	}
	return h.ns.Inside(func() error {
		l, err := netlink.LinkByName("door")
		if err != nil {
			return err
		}
		h.door = l.Attrs().HardwareAddr
		return netlink.LinkSetUp(l)
	})
}

// enter leads the packets of the client outside to the VIPs by a host, as a router does after a
// change of its routes. Replies come by the first host.
func (e *estate) enter(h *host) {
	e.t.Helper()
	check(e.t, e.outside.Inside(func() error {
		name, mac := "eth0", e.outside.Link.HostMAC
		if h.ns != nil {
			name, mac = h.name(), h.door
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		var errs []error
		for six, a := range vip {
			errs = append(errs,
				netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
					IP: a.AsSlice(), HardwareAddr: mac}),
				netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index,
					Dst: netlink.NewIPNet(a.AsSlice()), Scope: netlink.SCOPE_LINK,
					Src: far[six].AsSlice()}))
		}
		return errors.Join(errs...)
	}))
}

// Doors checks that the established flows stay with their instances when the router in front moves
// them to another ingress host.
func Doors(t *testing.T, open OpenHost) {
	for name, f := range map[string]func(*testing.T, *estate){
		"all flows move while the tables change":  flowsMoveUnderChange(open),
		"a flow with ports that were used before": portsAreUsedAgain,
		"a forged packet ends":                    forgedPacketEnds,
		"a UDP flow finds its instance by hash":   datagramsMove,
		"a socket without an entry is found":      socketIsFound,
		"a question sends the packet":             questionSends,
	} {
		for by, family := range []string{"", "by IPv6, "} {
			t.Run(family+name, func(t *testing.T) { f(t, newEstate(t, open, 3, by)) })
		}
	}
}

// crossing is an estate with open connections.
type crossing struct {
	*estate
	open    OpenHost
	random  *rand.Rand
	clients map[*client]string // with the instance that answers each
	next    int
	broken  int
	strays  int // answers of another instance
}

// doorsOpen returns the number of open connections, and of changes.
func doorsOpen(t *testing.T) (connections, changes int) {
	text := os.Getenv("PANDO_DOORS")
	if text == "" {
		return 400, 30
	}
	n, err := strconv.Atoi(text)
	check(t, err)
	return n, 200
}

func flowsMoveUnderChange(open OpenHost) func(*testing.T, *estate) {
	return func(t *testing.T, e *estate) {
		c := &crossing{estate: e, open: open, random: rand.New(rand.NewPCG(1, 14)),
			clients: map[*client]string{}}
		for slot := range e.hosts {
			c.add(slot)
		}
		e.publish()
		connections, changes := doorsOpen(t)
		for n := range connections {
			if n%50 == 0 {
				e.enter(e.hosts[c.random.IntN(3)])
			}
			c.connect(n % 2)
		}
		for n := range changes {
			c.change()
			to := e.hosts[c.random.IntN(len(e.hosts))]
			if n%10 == 9 {
				c.lose(to)
			}
			e.enter(to)
			c.askSome(100)
			c.connect(n % 2)
		}
		for _, h := range e.hosts {
			e.enter(h)
			c.askSome(len(c.clients))
		}
		t.Logf("%d connections, %d changes: %d broken, %d misdelivered", connections+changes, changes,
			c.broken, c.strays)
	}
}

func (c *crossing) add(slot int) {
	c.join(slot, fmt.Sprintf("i%d", c.next), 50+c.random.IntN(200))
	c.next++
}

func (c *crossing) connect(six int) {
	c.t.Helper()
	one := c.dial("outside", six)
	c.clients[one] = one.who(c.t)
}

// change starts an instance, drains one, replaces one by another, or moves the weights. The hosts
// learn of it one after the other.
func (c *crossing) change() {
	names := slices.Sorted(maps.Keys(c.weights))
	name := names[c.random.IntN(len(names))]
	takers := 0
	for _, w := range c.weights {
		takers += min(w, 1)
	}
	switch kind := c.random.IntN(4); {
	case kind == 0 && len(names) < 12:
		c.add(c.random.IntN(len(c.hosts)))
	case kind == 1 && takers > 2:
		c.weights[name] = 0
	case kind == 2 && takers > 1 && len(names) < 12:
		c.add(c.random.IntN(len(c.hosts)))
		c.weights[name] = 0
	default:
		if c.weights[name] > 0 {
			c.weights[name] = 1 + c.random.IntN(300)
		}
	}
	order := slices.Clone(c.hosts)
	c.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	c.publish(order[0])
	c.enter(c.hosts[c.random.IntN(len(c.hosts))])
	c.askSome(20)
	c.publish(order[1:]...)
}

// lose removes all tables of a host. Its next agent makes them anew.
func (c *crossing) lose(h *host) {
	c.t.Helper()
	check(c.t, h.inside(func() (err error) {
		uplinks := []string{"eth0", "door"}
		if h.ns == nil {
			uplinks = []string{"out", "h2", "h3"}
		}
		if err := h.Purge(); err != nil {
			return err
		}
		h.Subject, err = c.open(h.name(), [2]netip.Addr{h.own[c.by], h.own[1]}, uplinks...)
		if err != nil {
			return err
		}
		for _, b := range h.boxes {
			if err := h.Connect(c.t.Context(), b.Link, webPorts, vip[0], vip[1]); err != nil {
				return err
			}
		}
		return nil
	}))
	c.introduce(h, c.hosts...)
	c.publish(h)
}

func (c *crossing) askSome(n int) {
	for one, was := range c.clients { // in a new order each time
		if n--; n < 0 {
			return
		}
		who, err := one.ask("who")
		if err == nil && who == was {
			continue
		}
		if err == nil {
			c.strays++
		}
		c.broken++
		c.t.Errorf("a connection to %s from %s is answered by %q, %v", was, one.LocalAddr(), who, err)
		one.Close()
		delete(c.clients, one)
	}
}

// portsAreUsedAgain checks a client that uses the ports of an ended connection again. The first
// host still has the ended one, to another instance: it saw no end of it.
func portsAreUsedAgain(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(2, "c", 0)
	e.publish()
	for six := range 2 {
		old := e.dial("outside", six)
		old.who(t)
		old.acknowledge(t)
		old.who(t)
		from := old.LocalAddr().(*net.TCPAddr)
		e.enter(e.hosts[1])
		old.who(t) // from here on, the second host is the way back
		check(t, old.Conn.(*net.TCPConn).SetLinger(0))
		check(t, old.Close())
		e.weights["b"], e.weights["c"] = 0, 100
		e.publish()
		eventually(t, "the flow of b is gone", func() bool { return e.hosts[1].flows(t, "b") == 0 })
		var again *client
		check(t, e.outside.Inside(func() error {
			d := net.Dialer{Timeout: wait, LocalAddr: from}
			c, err := d.Dial("tcp", netip.AddrPortFrom(vip[six], 80).String())
			if err == nil {
				again = clientOf(c)
				t.Cleanup(again.drop)
			}
			return err
		}))
		if who := again.who(t); who != "c" {
			t.Fatalf("the ports are used again, and %s answers", who)
		}
		e.enter(e.hosts[0])
		if who, err := again.ask("who"); who != "c" || err != nil {
			t.Errorf("%s: after the way back, %q answers, %v", vip[six], who, err)
		}
		e.weights["b"], e.weights["c"] = 100, 0
		e.publish()
	}
}

// datagramsMove checks that UDP flows stay with their instances at another ingress host, while the
// tables are the same. These clients never use the other host before.
func datagramsMove(t *testing.T, e *estate) {
	for slot := range e.hosts {
		e.join(slot, string(rune('a'+slot)), 100)
	}
	e.publish()
	var all []net.Conn
	var was []byte
	answers := map[byte]int{}
	ask := func(c net.Conn) byte {
		answer := make([]byte, 10)
		_, err := exchange(c, []byte("?"), answer)
		check(t, err)
		return answer[0]
	}
	for n := range 60 {
		check(t, e.outside.Inside(func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(vip[n%2], 53).String())
			if err == nil {
				all = append(all, c)
				t.Cleanup(func() { c.Close() })
			}
			return err
		}))
		who := ask(all[n])
		was = append(was, who)
		answers[who]++
	}
	if len(answers) != 3 {
		t.Fatalf("60 UDP flows reach %v, want three instances", answers)
	}
	for _, h := range e.hosts {
		e.enter(h)
		for n, c := range all {
			if who := ask(c); who != was[n] {
				t.Errorf("by %s, a UDP flow of %c is answered by %c", h.name(), was[n], who)
			}
		}
	}
}

// forgedPacketEnds checks a packet of no flow: it is sent to each host once, and dropped. At its
// repetition a second later, its sender is refused.
func forgedPacketEnds(t *testing.T, e *estate) {
	for slot := range e.hosts {
		e.join(slot, string(rune('a'+slot)), 100)
	}
	e.publish()
	drops := func(h *host) (n uint64) {
		d, err := h.Drops(t.Context())
		check(t, err)
		return d.Packets[pando.DroppedNoFlow]
	}
	h, l := e.hosts[0], e.outside.Link
	for six := range 2 {
		from := at(netip.MustParseAddr([]string{"192.0.2.77", "2001:db8::77"}[six]), 7777)
		forged := tcp(from, at(vip[six], 80), "A").Bytes(l.MAC, l.HostMAC)
		before := drops(h)
		refused := func() uint64 {
			d, err := h.Drops(t.Context())
			check(t, err)
			return d.Answered
		}
		answered := refused()
		emit(t, e.outside, forged)
		eventually(t, "a forged packet is counted", func() bool { return drops(h) == before+1 })
		if n := refused(); n != answered {
			t.Error("the first packet of an unknown flow is refused")
		}
		eventually(t, "its repetition is refused", func() bool {
			emit(t, e.outside, forged)
			return refused() > answered
		})
		for _, other := range e.hosts {
			if n := other.flows(t, string(rune('a'+other.slot))); n != 0 {
				t.Errorf("%s has %d flows after forged packets", other.name(), n)
			}
		}
	}
}

// socketIsFound checks a connection of a flow that all tables lost: its instance's socket proves
// it, on the host itself and on another one.
func socketIsFound(t *testing.T, e *estate) {
	e.join(0, "a", 0)
	e.join(1, "b", 100)
	e.join(2, "c", 0)
	e.publish()
	for six := range 2 {
		c := e.dial("outside", six)
		c.who(t)
		e.weights["b"], e.weights["c"] = 0, 100
		e.publish()
		e.weights["a"] = 100 // after two changes, no table names b
		e.publish()
		for n, h := range []*host{e.hosts[0], e.hosts[1], e.hosts[2]} {
			for _, h := range e.hosts {
				emptyFlows(t, h)
			}
			e.enter(h)
			if who, err := c.ask("who"); who != "b" || err != nil {
				t.Errorf("%s, host %d without a table: %q answers, %v", vip[six], n, who, err)
			}
		}
		e.enter(e.hosts[0])
		e.weights["a"], e.weights["b"], e.weights["c"] = 0, 100, 0
		e.publish()
	}
}

// questionSends checks a packet of a host's own client that becomes a question. The client's socket
// counts it as sent. Otherwise the socket refuses the answer, and sends the packet again later.
func questionSends(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(2, "c", 0)
	e.publish()
	for six := range 2 {
		if e.by == 1 && six == 0 {
			continue // a host without IPv4 has no source for its own packets
		}
		c := e.dial("h1", six)
		c.who(t)
		c.acknowledge(t)
		c.who(t)
		emptyFlows(t, e.hosts[0])
		check(t, c.SetDeadline(time.Now().Add(wait)))
		_, err := fmt.Fprintln(c, "who")
		check(t, err)
		if n := c.unsent(t); n != 0 {
			t.Errorf("%s: %d bytes of a question wait to be sent", vip[six], n)
		}
		if who, err := c.in.ReadString('\n'); who != "b\n" || err != nil {
			t.Errorf("%s: %q answers, %v", vip[six], who, err)
		}
	}
}

// unsent returns the bytes that the client's socket has not sent yet.
func (c *client) unsent(t *testing.T) (bytes uint32) {
	t.Helper()
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			bytes = info.Notsent_bytes
		}
	}))
	check(t, err)
	return bytes
}

// emptyFlows deletes every flow of a host's tables.
func emptyFlows(t *testing.T, h *host) {
	t.Helper()
	for _, name := range []string{"flows", "flows6", "guarded", "guarded6", "opening",
		"opening6"} {
		m := pinned(t, pins+h.name(), name)
		var key, flow []byte
		var all [][]byte
		for i := m.Iterate(); i.Next(&key, &flow); {
			all = append(all, slices.Clone(key))
		}
		for _, k := range all {
			check(t, m.Delete(k))
		}
		check(t, m.Close())
	}
}
