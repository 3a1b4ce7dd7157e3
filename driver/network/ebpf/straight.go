package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/attach"
	"pando.run/pando/driver/network/netspace"
)

// socketPins is the folder of the pins of programs at the root of the control groups. A former
// build takes each pin in the folder links for that of a device.
const socketPins = "sockets"

// straights writes the ways straight to endpoints, for services that choose at connect
// (bpf/straight.h). The lock of the driver guards it.
type straights struct {
	objects *steerObjects
	of      map[uint32]steerStraight
	drains  map[uint32]bool                     // endpoints of this host with a way and no new flows
	served  map[uint32]map[steerServiceKey]bool // ports that choose at connect, by service
	clients map[int]uint64                      // network namespaces, by the ifindex of their link
	near    map[netip.Prefix]bool               // instances of other hosts with a route
	homes   map[int]bool                        // links of this host's instances with a way
}

func newStraights(o *steerObjects) straights {
	return straights{
		objects: o, of: map[uint32]steerStraight{}, drains: map[uint32]bool{},
		served:  map[uint32]map[steerServiceKey]bool{},
		clients: map[int]uint64{}, near: map[netip.Prefix]bool{}, homes: map[int]bool{},
	}
}

// read reads the ways of a former agent. An instance that has ended is no client any more.
func (s straights) read() error {
	err := each(s.objects.Straights, func(slot uint32, v steerStraight) { s.of[slot] = v })
	if err != nil {
		return fmt.Errorf("read the ways straight to endpoints: %w", err)
	}
	err = each(s.objects.Connects, func(k steerServiceKey, service uint32) { s.note(k, service) })
	if err != nil {
		return fmt.Errorf("read the services that choose at connect: %w", err)
	}
	var stale []uint64
	err = each(s.objects.Clients, func(cookie uint64, ifindex uint32) {
		var l steerInstanceLink
		if ifindex != 0 && s.objects.Links.Lookup(ifindex, &l) == nil {
			s.clients[int(ifindex)] = cookie
		} else {
			stale = append(stale, cookie)
		}
	})
	for _, cookie := range stale {
		err = errors.Join(err, s.objects.Clients.Delete(cookie))
	}
	if err != nil {
		return fmt.Errorf("read which instances are clients: %w", err)
	}
	return nil
}

func (s straights) note(k steerServiceKey, service uint32) {
	if s.served[service] == nil {
		s.served[service] = map[steerServiceKey]bool{}
	}
	s.served[service][k] = true
}

// attach runs the programs for all sockets of this machine. They look at the sockets of this host
// and of its instances only.
func (s straights) attach(pins string) error {
	if err := os.MkdirAll(pins, 0o700); err != nil {
		return fmt.Errorf("make a folder for the choice at connect: %w", err)
	}
	root, err := attach.OpenGroup()
	if err != nil {
		return err
	}
	defer root.Close()
	own, err := cookieOf("")
	if err != nil {
		return fmt.Errorf("recognise the network of this host: %w", err)
	}
	if err := s.objects.Clients.Put(own, uint32(0)); err != nil {
		return err
	}
	o := s.objects
	for _, at := range []struct {
		pin     string
		kind    ebpf.AttachType
		program *ebpf.Program
	}{
		{"release", ebpf.AttachCgroupInetSockRelease, o.StraightRelease}, // first: it counts
		{"peername4", ebpf.AttachCgroupInet4GetPeername, o.StraightPeername4},
		{"peername6", ebpf.AttachCgroupInet6GetPeername, o.StraightPeername6},
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg, o.StraightRecvmsg4},
		{"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg, o.StraightRecvmsg6},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg, o.StraightSendmsg4},
		{"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg, o.StraightSendmsg6},
		{"travels", ebpf.AttachCGroupSockOps, o.Travels},
		{"connect4", ebpf.AttachCGroupInet4Connect, o.StraightConnect4},
		{"connect6", ebpf.AttachCGroupInet6Connect, o.StraightConnect6},
	} {
		pin := filepath.Join(pins, at.pin)
		if err := root.Attach(pin, at.kind, at.program); err != nil {
			return fmt.Errorf("attach the choice at connect (%s): %w", at.pin, err)
		}
	}
	return nil
}

// cookieOf returns the kernel's number of a network namespace: of that at a path, or of the
// caller's for "".
func cookieOf(path string) (cookie uint64, err error) {
	read := func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	}
	if path == "" {
		return cookie, read()
	}
	err = netspace.At(path, read)
	return cookie, err
}

// isFull reports that a table is full. A client without a place in it uses the VIP.
func isFull(err error) bool { return errors.Is(err, unix.E2BIG) }

// admit makes the sockets of an instance clients. A sandbox that is gone has none.
func (s straights) admit(l pando.Link) error {
	if s.clients[l.IfIndex] != 0 || l.Netns == "" {
		return nil
	}
	cookie, err := cookieOf(l.Netns)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = s.objects.Clients.Put(cookie, uint32(l.IfIndex))
	}
	if isFull(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("let the instance at %s choose at connect: %w", l.Host, err)
	}
	s.clients[l.IfIndex] = cookie
	return nil
}

func (s straights) dismiss(l pando.Link) error {
	var errs []error
	for _, a := range []netip.Addr{l.IP4, l.IP6} {
		if a.IsValid() {
			errs = append(errs, ignoreMissing(s.objects.Homes.Delete(words(a))))
		}
	}
	delete(s.homes, l.IfIndex)
	if cookie, ok := s.clients[l.IfIndex]; ok {
		errs = append(errs, ignoreMissing(s.objects.Clients.Delete(cookie)))
		delete(s.clients, l.IfIndex)
	}
	return errors.Join(errs...)
}

// settle writes the link of an instance of this host by its own addresses.
func (s straights) settle(l pando.Link, straight bool) error {
	h := steerHome{Ifindex: uint32(l.IfIndex)}
	copy(h.Mac[:], l.MAC)
	copy(h.HostMac[:], l.HostMAC)
	if straight {
		h.Straight = 1
	}
	for _, a := range []netip.Addr{l.IP4, l.IP6} {
		if !a.IsValid() {
			continue
		}
		if err := s.objects.Homes.Put(words(a), h); err != nil && !isFull(err) {
			return fmt.Errorf("write the address of the instance at %s: %w", l.Host, err)
		}
	}
	if straight {
		s.homes[l.IfIndex] = true
	}
	return nil
}

// publish writes the ways to the endpoints of a service, by their slots. It is called when their
// table is in force. An endpoint keeps its way while its sockets may be connected, also when
// the service chooses by packets again.
func (s straights) publish(x *index, service uint32, t pando.SteeringTable, slots []uint32) error {
	for n, e := range t.Endpoints {
		if t.At == pando.AtConnect {
			if err := s.lead(x, slots[n], e, t.Ports); err != nil {
				return fmt.Errorf("write the way straight to %s: %w", e.Instance, err)
			}
		}
		delete(s.drains, slots[n])
		if _, ok := s.of[slots[n]]; ok && e.Weight == 0 && !e.Remote.IsValid() {
			s.drains[slots[n]] = true
		}
	}
	want := map[steerServiceKey]bool{}
	if t.At == pando.AtConnect {
		for _, a := range vips(t) {
			for _, p := range t.Ports {
				want[steerServiceKey{Addr: a, Port: network(p.Published),
					Protocol: protocols[p.Protocol]}] = true
			}
		}
	}
	for k := range want {
		if s.served[service][k] {
			continue
		}
		err := s.objects.Connects.Put(k, service)
		if isFull(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("let clients of %s choose at connect: %w", t.Service, err)
		}
		s.note(k, service)
	}
	return s.forgetPorts(service, want)
}

// forgetPorts ends the choice at connect at the ports of a service that are not wanted.
func (s straights) forgetPorts(service uint32, want map[steerServiceKey]bool) error {
	var errs []error
	for k := range s.served[service] {
		if !want[k] {
			errs = append(errs, ignoreMissing(s.objects.Connects.Delete(k)))
			delete(s.served[service], k)
		}
	}
	if len(s.served[service]) == 0 {
		delete(s.served, service)
	}
	return errors.Join(errs...)
}

// lead writes the way to an endpoint, unless it stands. The count of its sockets stays. The ports
// are those of its own revision: an instance of this host has translations, and a remote one has an
// address in the table only if the table's ports are its own.
func (s straights) lead(x *index, slot uint32, e pando.Endpoint, ports []pando.Port) error {
	v := s.way(e)
	if e.Remote.IsValid() {
		for n, p := range ports[:min(len(ports), len(v.Ports))] {
			v.port(n, network(p.Published), network(p.Target), protocols[p.Protocol])
		}
	} else {
		v.portsOf(x.translations[uint32(e.Link.IfIndex)])
		if !s.homes[e.Link.IfIndex] {
			if err := s.settle(e.Link, true); err != nil {
				return err
			}
		}
	}
	v.Epoch = x.slots[slot].Epoch
	was, ok := s.of[slot]
	if was.Sockets = 0; ok && was == v {
		return nil
	}
	if ok { // the programs count meanwhile
		var now steerStraight
		if err := s.objects.Straights.Lookup(slot, &now); err != nil {
			return err
		}
		v.Sockets = now.Sockets
	}
	err := s.objects.Straights.Put(slot, v)
	if isFull(err) {
		return nil // its clients use the VIP
	}
	if err != nil {
		return err
	}
	v.Sockets = 0
	s.of[slot] = v
	return nil
}

// way returns the addresses of an endpoint that this host has a route to.
func (s straights) way(e pando.Endpoint) (v steerStraight) {
	four, six := e.Link.IP4, e.Link.IP6
	if e.Remote.IsValid() {
		four, six = s.nearOnly(e.Own4), s.nearOnly(e.Own6)
	}
	if four.IsValid() {
		v.Addr[0] = words(four)
	}
	if six.IsValid() {
		v.Addr[1] = words(six)
	}
	return v
}

// nearOnly returns an address of another host's instance if there is a route to it.
func (s straights) nearOnly(a netip.Addr) netip.Addr {
	for p := range s.near {
		if p.Contains(a) {
			return a
		}
	}
	return netip.Addr{}
}

// portsOf adds the ports of an instance of this host to its way, the lowest first.
func (v *steerStraight) portsOf(translations map[steerPortKey]uint16) {
	var keys []steerPortKey
	for k := range translations {
		if k.Goes == toTarget {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b steerPortKey) int {
		return cmp.Or(cmp.Compare(network(a.Port), network(b.Port)),
			cmp.Compare(a.Protocol, b.Protocol))
	})
	for n, k := range keys[:min(len(keys), len(v.Ports))] {
		v.port(n, k.Port, translations[k], k.Protocol)
	}
}

// port writes a port. Its numbers are in network order.
func (v *steerStraight) port(n int, published, target uint16, protocol uint8) {
	v.Ports[n].Published, v.Ports[n].Target, v.Ports[n].Protocol = published, target, protocol
}

// forget removes the way to an endpoint that is gone.
func (s straights) forget(slot uint32) error {
	if _, ok := s.of[slot]; !ok {
		return nil
	}
	delete(s.of, slot)
	delete(s.drains, slot)
	return ignoreMissing(s.objects.Straights.Delete(slot))
}

// draining returns the ways to the endpoints of this host that drain.
func (s straights) draining() map[uint32]steerStraight {
	out := map[uint32]steerStraight{}
	for slot := range s.drains {
		out[slot] = s.of[slot]
	}
	return out
}

// sockets returns the numbers of sockets of this host that have a way straight to an endpoint.
func (s straights) sockets() (map[uint32]int32, error) {
	out := map[uint32]int32{}
	if len(s.of) == 0 {
		return out, nil
	}
	err := each(s.objects.Straights, func(slot uint32, v steerStraight) {
		if v.Sockets != 0 {
			out[slot] = v.Sockets
		}
	})
	return out, err
}

// connections counts the established connections at the instance's own address and ports. Only the
// instance's own sockets prove it: a client may be on another host.
func (v steerStraight) connections(sockets map[connection]bool) (n int) {
	for c, established := range sockets {
		local := words(c.local.Addr())
		if !established || c.protocol != protocols[pando.TCP] ||
			local != v.Addr[0] && local != v.Addr[1] {
			continue
		}
		for _, p := range v.Ports {
			if p.Protocol == c.protocol && p.Target == network(c.local.Port()) {
				n++
				break
			}
		}
	}
	return n
}
