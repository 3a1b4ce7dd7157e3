// Package steering is the conformance table for every implementation of pando.Steering. A row has
// an incoming packet, the expected result, and the counters that must show it. Further tests use
// real sockets, under change and under attack.
//
// It uses a driver only through the interface Subject, and decides nothing itself.
package steering

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab"
)

// Place is where a packet meets the steering.
type Place string

const (
	Outside Place = "outside" // comes in at an uplink
	Host    Place = "host"    // begins on this host
	// Any other place is the instance of that name, which sent the packet.
)

// Fate is the result of a packet.
type Fate string

const (
	Passed  Fate = "passed"  // continues unchanged from here, by the host's routes
	Dropped Fate = "dropped" // counted with a reason
	Sent    Fate = "sent"    // put onto a link: of an instance, or back to where it came from
)

// Outcome is the fate of one packet and its bytes.
type Outcome struct {
	Fate  Fate
	Frame []byte
}

// Subject is a driver under test.
type Subject interface {
	pando.Steering
	// Try lets one frame come in at a place and returns its outcome. The link is that of the uplink or
	// of the instance. With summed, the network card has summed up the frame, and that sum must also
	// be right afterwards.
	Try(at Place, l pando.Link, frame []byte, summed bool) (Outcome, error)
	// Purge removes everything of the driver from the kernel.
	Purge() error
}

// Lacking is a subject that does not hold every guarantee. It gives the reason for each that it
// lacks, by the name of its test.
type Lacking interface {
	// Lacks returns the reasons.
	Lacks() map[string]string
}

// lack returns why a driver does not hold a guarantee, or "" if it does.
func lack(s Subject, name string) string {
	if l, ok := s.(Lacking); ok {
		return l.Lacks()[name]
	}
	return ""
}

// The services of every test. Both have an address in each family.
var (
	web   = pando.DefaultService("web")
	quiet = pando.DefaultService("quiet") // without an instance in rotation

	webPorts = []pando.Port{
		{Published: 80, Target: 8080, Protocol: pando.TCP},
		{Published: 53, Target: 5353, Protocol: pando.UDP},
		{Published: 443, Target: 443, Protocol: pando.TCP},
		{Published: 123, Target: 123, Protocol: pando.UDP},
	}
	vip = [2]netip.Addr{
		netip.MustParseAddr("10.127.0.7"), netip.MustParseAddr("fd70:616e:646f:ffff::7"),
	}
	other = [2]netip.Addr{
		netip.MustParseAddr("10.127.0.8"), netip.MustParseAddr("fd70:616e:646f:ffff::8"),
	}
	none = [2]netip.Addr{
		netip.MustParseAddr("10.127.0.99"), netip.MustParseAddr("fd70:616e:646f:ffff::99"),
	}
	far = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
)

// stand is a host under test with a client outside and instances of web.
type stand struct {
	Subject
	outside *lab.Box
	boxes   map[string]*lab.Box
	// addr holds the instances' own addresses, by family.
	addr map[string][2]netip.Addr
}

func newStand(
	t *testing.T, open func(t *testing.T, uplinks ...string) Subject, instances ...string,
) *stand {
	t.Helper()
	s := &stand{boxes: map[string]*lab.Box{}, addr: map[string][2]netip.Addr{}}
	s.outside = box(t, "out", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"))
	s.Subject = open(t, "out")
	t.Cleanup(func() {
		if err := s.Purge(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		for _, b := range s.boxes {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() { awaitClientsEnd(t) })
	for _, name := range instances {
		s.join(t, name, webPorts)
	}
	return s
}

func box(t *testing.T, name string, ip4, ip6 netip.Addr, vips ...netip.Addr) *lab.Box {
	t.Helper()
	b, err := lab.NewBox(name, ip4, ip6, vips...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// join adds another instance of web.
func (s *stand) join(t *testing.T, name string, ports []pando.Port) *lab.Box {
	t.Helper()
	return s.joinAt(t, name, ports, vip)
}

// joinAt adds an instance of the service with these VIPs.
func (s *stand) joinAt(
	t *testing.T, name string, ports []pando.Port, vip [2]netip.Addr,
) *lab.Box {
	t.Helper()
	n := byte(len(s.boxes) + 2)
	ip := [2]netip.Addr{netip.AddrFrom4([4]byte{10, 128, 0, n}),
		netip.AddrFrom16([16]byte{0xfd, 0x70, 0x61, 0x6e, 0x64, 0x6f, 0, 1, 15: n})}
	b, err := lab.NewBox("pd"+name, ip[0], ip[1], vip[0], vip[1])
	if err != nil {
		t.Fatal(err)
	}
	s.boxes[name], s.addr[name] = b, ip
	if err := s.Connect(t.Context(), b.Link, ports, vip[0], vip[1]); err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *stand) endpoint(name string, weight int) pando.Endpoint {
	return pando.Endpoint{Instance: pando.InstanceID(name), Weight: weight, Link: s.boxes[name].Link}
}

func (s *stand) publish(t *testing.T, e ...pando.Endpoint) {
	t.Helper()
	err := s.Publish(t.Context(),
		pando.SteeringTable{Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts, Endpoints: e})
	if err != nil {
		t.Fatal(err)
	}
}

// row is one line of the table: a packet, the place of its arrival, and the expected result.
type row struct {
	at    Place
	in    Packet
	to    string // an instance; "on": as the host routes it; "back": to its sender; "": dropped
	out   Packet // the packet afterwards
	why   pando.DropReason
	first bool // it opens a flow
}

// Hold checks a driver against the table, in both families.
func Hold(t *testing.T, open func(t *testing.T, uplinks ...string) Subject) {
	s := newStand(t, open, "a", "b")
	err := s.Publish(t.Context(),
		pando.SteeringTable{Service: quiet, VIP4: other[0], VIP6: other[1], Ports: webPorts})
	if err != nil {
		t.Fatal(err)
	}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	for six, family := range []string{"IPv4", "IPv6"} {
		c := caseFor(six, s)
		for _, group := range []func(caseOf) map[string][]row{
			steered, refused, unusual, pieces, complaints, own,
		} {
			for name, rows := range group(c) {
				t.Run(family+" "+name, func(t *testing.T) {
					s.hold(t, family, name, rows)
				})
			}
		}
	}
}

// hold tries the rows of a guarantee. A driver without it must fail at least one of them, so that
// its list stays true.
func (s *stand) hold(t *testing.T, family, name string, rows []row) {
	t.Helper()
	why := lack(s.Subject, family+" "+name)
	if why == "" {
		why = lack(s.Subject, name)
	}
	var failed error
	for _, r := range rows {
		if err := s.try(t, r); err != nil {
			failed = errors.Join(failed, err)
			break
		}
	}
	switch {
	case failed != nil && why == "":
		t.Fatal(failed)
	case failed != nil:
		t.Logf("not held by this driver: %s (%v)", why, failed)
	case why != "":
		t.Errorf("the driver holds this guarantee; take it from its list (%s)", why)
	}
}

// try tries one row.
func (s *stand) try(t *testing.T, r row) error {
	t.Helper()
	l := s.outside.Link
	if b := s.boxes[string(r.at)]; b != nil {
		l = b.Link
	}
	frame := r.in.Bytes(l.MAC, l.HostMAC)
	drops, traffic := s.drops(t), s.traffic(t)
	// The frame has no such sum if the host sends it, or if its length changes on the way.
	summed := r.at != Host &&
		(r.to != "back" || len(unpadded(r.out.Bytes(l.MAC, l.HostMAC))) == len(frame))
	got, err := s.Try(r.at, l, frame, summed)
	if err != nil {
		return err
	}
	want := Outcome{Fate: Dropped}
	switch r.to {
	case "":
	case "on":
		want = Outcome{Passed, r.out.Bytes(l.MAC, l.HostMAC)}
	case "back":
		want = Outcome{Sent, r.out.Bytes(l.HostMAC, l.MAC)}
	default:
		to := s.boxes[r.to].Link
		want = Outcome{Sent, r.out.Bytes(to.HostMAC, to.MAC)}
		was := traffic[r.to]
		traffic[r.to] = [3]uint64{was[0], was[1] + 1, was[2] + uint64(len(frame))}
		if r.first {
			traffic[r.to] = [3]uint64{was[0] + 1, was[1] + 1, was[2] + uint64(len(frame))}
		}
	}
	if got.Fate != want.Fate {
		return fmt.Errorf("at %s: %s, want %s; in: %s", r.at, got.Fate, want.Fate, describe(frame))
	}
	if want.Fate != Dropped && !bytes.Equal(unpadded(got.Frame), unpadded(want.Frame)) {
		return fmt.Errorf("at %s: became %s\nwant %s", r.at, describe(got.Frame), describe(want.Frame))
	}
	return s.counted(t, r, drops, traffic)
}

// counted compares the counters with those that a row leaves.
func (s *stand) counted(
	t *testing.T, r row, drops pando.Drops, traffic map[string][3]uint64,
) error {
	t.Helper()
	if r.why != "" {
		drops.Packets[r.why]++
	}
	if r.to == "back" && r.why != "" {
		drops.Answered++
	}
	if now := s.drops(t); !sameDrops(now, drops) {
		return fmt.Errorf("at %s: drops are %v, want %v", r.at, now, drops)
	}
	for name, want := range traffic {
		if now := s.traffic(t)[name]; now != want {
			return fmt.Errorf("at %s: flows, packets and bytes of %s are %v, want %v", r.at, name, now, want)
		}
	}
	return nil
}

// unpadded returns a frame without the padding to Ethernet's least length.
func unpadded(frame []byte) []byte {
	length := int(binary.BigEndian.Uint16(frame[16:]))
	if frame[14]>>4 == 4 && 14+length < len(frame) {
		return frame[:14+length]
	}
	return frame
}

func (s *stand) drops(t *testing.T) pando.Drops {
	t.Helper()
	d, err := s.Drops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func sameDrops(a, b pando.Drops) bool { // a has the current counts
	for why, n := range a.Packets {
		// The stacks of the boxes send chatter of their own meanwhile.
		if b.Packets[why] != n && (why != pando.DroppedChatter || n < b.Packets[why]) {
			return false
		}
	}
	return a.Answered == b.Answered && len(a.Packets) == len(b.Packets)
}

// traffic returns flows, packets and bytes by instance.
func (s *stand) traffic(t *testing.T) map[string][3]uint64 {
	t.Helper()
	counters, err := s.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][3]uint64{}
	for _, c := range counters {
		out[string(c.Instance)] = [3]uint64{c.Flows, c.Packets, c.Bytes}
	}
	return out
}
