package steering

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

// exchange sends a datagram until there is an answer: a network may lose one.
func exchange(c net.Conn, ask, answer []byte) (n int, err error) {
	for range 10 {
		if err = c.SetDeadline(time.Now().Add(wait)); err != nil {
			return 0, err
		}
		if _, err = c.Write(ask); err != nil {
			return 0, err
		}
		if n, err = c.Read(answer); err == nil {
			return n, nil
		}
	}
	return 0, err
}

// Remote checks a driver on several hosts: instances on other hosts serve the clients of each.
func Remote(t *testing.T, open OpenHost) {
	for name, f := range map[string]func(*testing.T, *estate){
		"every place reaches another host":        everyPlaceReaches,
		"the host of the instance counts flows":   farHostCounts,
		"a flood evicts no proven flow":           floodHereHarmsNoFlowThere,
		"strangers in the tunnel are dropped":     strangersAreDropped,
		"a reset ends a flow on both hosts":       resetEndsOnBothHosts,
		"the death of a host ends its flows only": deathEndsItsFlowsOnly,
		"a second SYN waits for the other host":   secondSYNWaits,
		"a SYN leaves an instance that is gone":   goneIsLeft,
		"a SYN leaves a silent host":              silentIsLeft,
		"a host replaces its ended instance":      endedIsReplaced,
		"every packet fits into the tunnel":       everyPacketFits,
		"a host without others has no tunnel":     aloneHasNoTunnel,
		"a deleted device is made again":          deletedIsMadeAgain,
		"a host out of reach fails alone":         outOfReachFailsAlone,
		"a taker learns flows of other hosts":     aTakerLearnsFlows,
		"a socket goes straight to another host":  straightToAnotherHost,
	} {
		t.Run(name, func(t *testing.T) { f(t, newEstate(t, open, 3, 0)) })
	}
	for name, f := range map[string]func(*testing.T, *estate){
		"by IPv6, every place reaches another host":   everyPlaceReaches6,
		"by IPv6, the host of the instance counts":    farHostCounts,
		"by IPv6, strangers are dropped":              strangersAreDropped,
		"by IPv6, a reset ends a flow on both hosts":  resetEndsOnBothHosts,
		"by IPv6, routes of IPv4 lead to other hosts": routesLeadByIPv6,
	} {
		t.Run(name, func(t *testing.T) { f(t, newEstate(t, open, 3, 1)) })
	}
}

func everyPlaceReaches(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(0, "client", 0)
	e.join(2, "guest", 0)
	e.publish()
	for six := range 2 {
		for _, place := range []string{"outside", "h1", "h2", "h3", "client", "guest"} {
			if !strings.HasPrefix(place, "h") && place != "outside" {
				continue // an instance of the service has the VIP itself
			}
			if e.by == 1 && six == 0 && strings.HasPrefix(place, "h") {
				continue // a host without IPv4 has no source for its own packets
			}
			c := e.dial(place, six)
			for _, size := range []string{"who", strings.Repeat("z", 60_000), "1048576"} {
				answer, err := c.ask(size)
				if err != nil || answer != "b" && len(answer) != 1<<20 {
					t.Errorf("from %s to %s: %d bytes, %v", place, vip[six], len(answer), err)
				}
			}
			sizes := []int{1, 1000, 1472, 9000, 60000}
			if e.by == 1 { // the kernel divides no tunnel packet of IPv6
				sizes = sizes[:2]
			}
			for _, size := range sizes {
				if who, err := e.askUDP(place, six, size); err != nil || who != 'b' {
					t.Errorf("%d bytes by UDP from %s to %s: %q, %v", size, place, vip[six], who, err)
				}
			}
		}
	}
}

func farHostCounts(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.publish()
	ends := func() uint64 {
		n, err := e.hosts[1].Ends(t.Context(), web, "b")
		check(t, err)
		return n
	}
	for six := range 2 {
		before := ends()
		c := e.dial("outside", six)
		c.who(t)
		if n := e.hosts[1].flows(t, "b"); n != 1 {
			t.Errorf("the host of b has %d flows, want 1", n)
		}
		if n := e.hosts[0].flows(t, "b"); n != 0 {
			t.Errorf("the other host counts %d flows of b, want 0", n)
		}
		c.Close()
		eventually(t, "both ends are seen", func() bool { return ends() >= before+2 })
		eventually(t, "no flow is left", func() bool { return e.hosts[1].flows(t, "b") == 0 })
	}
	counters, err := e.hosts[1].Counters(t.Context())
	check(t, err)
	if len(counters) != 1 || counters[0].Flows != 2 {
		t.Errorf("the counters of the host of b are %+v, want 2 flows of b", counters)
	}
	if counters, err = e.hosts[0].Counters(t.Context()); err != nil || len(counters) != 0 {
		t.Errorf("the counters of the other host are %+v, %v; want none", counters, err)
	}
}

// floodHereHarmsNoFlowThere checks that a host holds the flows that another host has proven: a
// flood of SYNs evicts opening flows only. The tables change, so that none restores the flow.
func floodHereHarmsNoFlowThere(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(2, "c", 100)
	e.publish()
	open := map[*client]string{}
	for n := range 20 {
		c := e.dial("outside", n%2)
		open[c] = c.who(t)
		c.acknowledge(t)
		c.who(t)
	}
	h := e.hosts[0]
	for n := range 8000 {
		src := far[0].As4()
		src[2], src[3] = byte(n>>8), byte(n)
		src6 := far[1].As16()
		src6[14], src6[15] = byte(n>>8), byte(n)
		for _, p := range []Packet{
			tcp(addrPort4(src), at(vip[0], 80), "S"), tcp(addrPort6(src6), at(vip[1], 80), "S"),
		} {
			l := e.outside.Link
			if _, err := h.Try(Outside, l, p.Bytes(l.MAC, l.HostMAC), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, weights := range [][2]int{{10, 300}, {300, 10}, {0, 100}} {
		e.weights["b"], e.weights["c"] = weights[0], weights[1]
		e.publish()
	}
	for c, was := range open {
		if who := c.who(t); who != was {
			t.Errorf("a connection to %s is answered by %s", was, who)
		}
	}
}

func strangersAreDropped(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.publish()
	strangers := func(h *host) uint64 {
		d, err := h.Drops(t.Context())
		check(t, err)
		return d.Packets[pando.DroppedStranger]
	}
	kept := e.dial("outside", 0)
	kept.who(t)
	h, before := e.hosts[1], strangers(e.hosts[1])
	for n := range 10 {
		check(t, e.outside.Inside(func() error { return forge(h.own[e.by], byte(n)) }))
	}
	eventually(t, "ten forged packets are counted", func() bool { return strangers(h) >= before+10 })
	if n := h.flows(t, "b"); n != 1 {
		t.Errorf("b has %d flows after forged packets, want 1", n)
	}
	e.introduce(h, e.hosts[2]) // the first host was removed
	before = strangers(h)
	check(t, kept.SetDeadline(time.Now().Add(wait)))
	_, err := kept.Write([]byte("who\n"))
	check(t, err)
	eventually(t, "the packets of a removed host are counted",
		func() bool { return strangers(h) > before })
	e.introduce(h, e.hosts...)
	check(t, kept.SetDeadline(time.Now().Add(10*wait)))
	if line, err := kept.in.ReadString('\n'); err != nil || line != "b\n" {
		t.Errorf("after the host came back, the connection has %q, %v", line, err)
	}
}

// forge sends a frame to the address of a host as another host's tunnel does.
func forge(by netip.Addr, n byte) error {
	c, err := net.Dial("udp", net.JoinHostPort(by.String(), "7404"))
	if err != nil {
		return err
	}
	defer c.Close()
	p := tcp(at(far[0], uint16(5000)+uint16(n)), at(vip[0], 80), "S")
	frame := p.Bytes(net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2})
	_, err = c.Write(append([]byte{8, 0, 0, 0, 0, 0, n, 0}, frame...))
	return err
}

func deathEndsItsFlowsOnly(t *testing.T, e *estate) {
	e.join(0, "a", 100)
	e.join(1, "b", 100)
	e.join(2, "c", 100)
	e.publish()
	of := map[string][]*client{}
	for n := 0; n < 300 && (len(of["a"]) < 5 || len(of["b"]) < 5 || len(of["c"]) < 5); n++ {
		c := e.dial("outside", n%2)
		of[c.who(t)] = append(of[c.who(t)], c)
	}
	if len(of) != 3 {
		t.Fatalf("300 connections reach %d instances, want 3", len(of))
	}
	e.kill(e.hosts[2])
	e.publish()
	for _, name := range []string{"a", "b"} {
		for _, c := range of[name] {
			if who := c.who(t); who != name {
				t.Errorf("a connection to %s is answered by %s", name, who)
			}
		}
	}
	for _, c := range of["c"] {
		if who, err := c.ask("who"); err == nil {
			t.Errorf("a connection to a dead host is answered by %s", who)
		}
	}
	for n := range 20 {
		c := e.dial("outside", n%2)
		if c.who(t) == "c" {
			t.Error("a new connection reaches a dead host")
		}
	}
}

// secondSYNWaits checks a client that begins before the host of the instance serves the VIP. It
// repeats its SYN, and nothing resets it.
func secondSYNWaits(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.publish(e.hosts[0])
	drops := func() uint64 {
		d, err := e.hosts[1].Drops(t.Context())
		check(t, err)
		return d.Packets[pando.DroppedNoEndpoint]
	}
	done := make(chan error, 1)
	go func() {
		done <- e.outside.Inside(func() error {
			d := net.Dialer{Timeout: 20 * wait}
			c, err := d.Dial("tcp", at(vip[0], 80).String())
			if err == nil {
				defer c.Close()
				_, err = clientOf(c).ask("who")
			}
			return err
		})
	}()
	eventually(t, "two SYNs have come", func() bool { return drops() >= 2 })
	e.publish(e.hosts[1])
	if err := <-done; err != nil {
		t.Errorf("a connection that began too early: %v", err)
	}
}

// goneIsLeft checks a client that is sent to an instance that has just ended on the other host. It
// repeats its SYN, and reaches another instance once the table is newer.
func goneIsLeft(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(2, "c", 0)
	e.publish(e.hosts[0], e.hosts[2])
	done := make(chan error, 1)
	go func() {
		done <- e.outside.Inside(func() error {
			d := net.Dialer{Timeout: 20 * wait}
			c, err := d.Dial("tcp", at(vip[1], 80).String())
			if err != nil {
				return err
			}
			defer c.Close()
			if name, err := clientOf(c).ask("who"); err != nil || name != "c" {
				return fmt.Errorf("answered by %q, %w", name, err)
			}
			return nil
		})
	}()
	eventually(t, "a SYN has come", func() bool {
		d, err := e.hosts[1].Drops(t.Context())
		check(t, err)
		return d.Packets[pando.DroppedNoEndpoint] > 0
	})
	e.weights["b"], e.weights["c"] = 0, 100
	e.publish(e.hosts[0])
	if err := <-done; err != nil {
		t.Errorf("a connection to an instance that was gone: %v", err)
	}
}

// endedIsReplaced checks a client that is sent to an instance that has just ended, on a host with
// another one. That one answers at once, and keeps the connection when the first table is newer.
func endedIsReplaced(t *testing.T, e *estate) {
	const second = time.Second // a client repeats its first packet after that
	e.join(1, "b", 100)
	e.join(1, "d", 0)
	for six := range 2 {
		e.weights["b"], e.weights["d"] = 100, 0
		e.publish(e.hosts[0])
		delete(e.weights, "b")
		e.weights["d"] = 100
		e.publish(e.hosts[1])
		begin := time.Now()
		c := e.dial("outside", six)
		if who := c.who(t); who != "d" || time.Since(begin) > second/2 {
			t.Errorf("answered by %s after %s, want d before the client tries again", who,
				time.Since(begin))
		}
		c.acknowledge(t)
		c.who(t)
		e.publish(e.hosts[0]) // b is gone here too
		if who := c.who(t); who != "d" {
			t.Errorf("the connection to d is answered by %s once the table is newer", who)
		}
		if who, err := e.askUDP("outside", six, 100); err != nil || who != 'd' {
			t.Errorf("a datagram is answered by %q, %v; want d", who, err)
		}
	}
}

// silentIsLeft checks a client that sends its first packet to a dead host. It repeats the packet,
// and reaches another host once the probes have found the death.
func silentIsLeft(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.join(2, "c", 0)
	e.publish()
	l, err := netlink.LinkByName(e.hosts[1].name())
	check(t, err)
	check(t, netlink.LinkSetDown(l)) // before the probes know
	for six := range 2 {
		e.weights["b"], e.weights["c"], e.silent = 100, 0, nil
		e.publish(e.hosts[0])
		opening := func() int { return entries(t, pins+"h1", []string{"guarded", "guarded6"}[six]) }
		before, done := opening(), make(chan error, 1)
		go func() {
			done <- e.outside.Inside(func() error {
				d := net.Dialer{Timeout: 20 * wait}
				c, err := d.Dial("tcp", at(vip[six], 80).String())
				if err != nil {
					return err
				}
				defer c.Close()
				if name, err := clientOf(c).ask("who"); err != nil || name != "c" {
					return fmt.Errorf("answered by %q, %w", name, err)
				}
				return nil
			})
		}()
		eventually(t, "a flow to b is opening", func() bool { return opening() > before })
		e.weights["b"], e.weights["c"], e.silent = 0, 100, e.hosts[1]
		e.publish(e.hosts[0])
		if err := <-done; err != nil {
			t.Errorf("a connection that began at a dead host: %v", err)
		}
	}
}

// everyPacketFits checks that TCP clients of a host send no packet that must be divided for the
// tunnel, at the usual MTU and at a smaller one. A network that is too small is refused.
func everyPacketFits(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	for _, mtu := range []int{1500, 1400} {
		for _, h := range e.hosts[:2] {
			check(t, h.inside(func() error { return setMTU([]string{"h2", "eth0"}[h.slot], mtu) }))
			e.introduce(h, e.hosts...)
		}
		e.publish()
		for six := range 2 {
			c := e.dial("outside", six)
			before := divided(t)
			for range 20 {
				c.ask(strings.Repeat("z", 60_000))
			}
			if n := divided(t) - before; n != 0 {
				t.Errorf("MTU %d: %d packets to %s were divided", mtu, n, vip[six])
			}
			name, err := c.ask("who")
			if err != nil || name != "b" {
				t.Errorf("MTU %d: answered by %q, %v", mtu, name, err)
			}
		}
	}
	check(t, setMTU("h2", 1300))
	e.introduce(e.hosts[0], e.hosts...)
	err := e.hosts[0].Publish(t.Context(), e.table(e.hosts[0]))
	if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), "1330") {
		t.Errorf("a network with an MTU of 1300: %v", err)
	}
	check(t, setMTU("h2", 1500))
	e.publish()
}

func setMTU(name string, mtu int) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(l, mtu)
}

// divided returns the number of IPv4 packets that the first host has divided: its tunnels' outer
// packets.
func divided(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/snmp")
	check(t, err)
	var names []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[0] != "Ip:" {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		n, err = strconv.Atoi(words[slices.Index(names, "FragCreates")])
		check(t, err)
	}
	return n
}
