package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	bounded "pando.run/pando/access/share"
)

// Bounds of the held first packets. A packet beyond them is dropped and counted, and its client
// sends it again.
const (
	heldPerService = 64
	heldFor        = 30 * time.Second
	knocksMax      = 1024 // services that wait for the agent
)

// heldBound is the first packets that are held for all services.
var heldBound = bounded.Bound{Total: 1024, Each: 256, Reserve: 128}

// sleepers holds the first packets of services that sleep, and sends them on once the service has
// an endpoint. The programs pass them over a ring.
type sleepers struct {
	objects *steerObjects
	reader  *ringbuf.Reader // nil: not open
	socket  int             // sends frames out of pando0, where from_host steers them
	routed  [2]int          // send IPv4 and IPv6 packets by the host's routes
	ifindex int
	knocks  chan pando.ServiceKey
	done    chan struct{}

	mu      sync.Mutex // guards the fields below; taken after the driver's
	of      map[uint32]*sleeper
	routes  map[uint32]bool             // services that woke on a host to which a route leads
	count   *bounded.Pool[pando.Tenant] // packets of all services
	dropped uint64
}

// sleeper is one service that sleeps.
type sleeper struct {
	key  pando.ServiceKey
	held []heldPacket // oldest first
}

// heldPacket is one first packet, from its Ethernet header on.
type heldPacket struct {
	frame []byte
	at    uint64 // in nanoseconds since boot
	place *bounded.Hold[pando.Tenant]
}

// isOld reports whether a packet was held too long.
func isOld(h heldPacket, now uint64) bool { return now > h.at+uint64(heldFor) }

func newSleepers(o *steerObjects) *sleepers {
	return &sleepers{objects: o, of: map[uint32]*sleeper{}, routes: map[uint32]bool{},
		done: make(chan struct{}), count: bounded.New[pando.Tenant](heldBound),
		knocks: make(chan pando.ServiceKey, knocksMax)}
}

// open begins to read the ring.
func (s *sleepers) open() error {
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		return fmt.Errorf("find %s: %w", Device, err)
	}
	s.ifindex = dev.Attrs().Index
	// Protocol 0 receives nothing.
	if s.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open a socket for held packets: %w", err)
	}
	for n, family := range []int{unix.AF_INET, unix.AF_INET6} {
		s.routed[n], err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil && (family == unix.AF_INET || hasIPv6()) {
			return errors.Join(fmt.Errorf("open a socket for held packets: %w", err), s.shut())
		}
	}
	if s.reader, err = ringbuf.NewReader(s.objects.Knocks); err != nil {
		return errors.Join(fmt.Errorf("open the ring of held packets: %w", err), s.shut())
	}
	go s.run()
	return nil
}

// close ends the reading. The held packets are lost.
func (s *sleepers) close() error {
	if s.reader == nil {
		return nil
	}
	err := s.reader.Close()
	<-s.done
	s.reader = nil
	return errors.Join(err, s.shut())
}

// shut closes the sockets.
func (s *sleepers) shut() (err error) {
	for _, fd := range []int{s.socket, s.routed[0], s.routed[1]} {
		if fd > 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	s.routed = [2]int{}
	return err
}

// Knocks implements pando.Steering.
func (s *sleepers) Knocks() <-chan pando.ServiceKey { return s.knocks }

// lost returns the number of dropped first packets.
func (s *sleepers) lost() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// run reads the ring until it is closed.
func (s *sleepers) run() {
	defer close(s.done)
	var r ringbuf.Record
	for {
		err := s.reader.ReadInto(&r)
		if errors.Is(err, ringbuf.ErrClosed) {
			return
		}
		if err != nil || len(r.RawSample) < 8 {
			continue
		}
		n := binary.NativeEndian.Uint32(r.RawSample)
		size := int(binary.NativeEndian.Uint32(r.RawSample[4:]))
		if frame := r.RawSample[8:]; size <= len(frame) {
			s.take(n, bytes.Clone(frame[:size]))
		}
	}
}

// take holds a packet and reports its service. A service that woke meanwhile gets it at once.
func (s *sleepers) take(n uint32, frame []byte) {
	seal(frame)
	now, err := monotonic()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.of[n]
	if at == nil {
		var v steerService
		err = errors.Join(err, s.objects.Services.Lookup(n, &v))
		if err == nil && v.Asleep == 0 && s.send(frame, s.routes[n]) == nil {
			return
		}
		s.dropped++ // a former agent's service: this one has not published it yet
		return
	}
	at.held = slices.DeleteFunc(at.held, func(h heldPacket) bool {
		old := isOld(h, now)
		over := old || isAgain(h.frame, frame)
		if over {
			h.place.Close()
		}
		if old {
			s.dropped++
		}
		return over
	})
	place, err := at.place(s.count)
	if err != nil {
		s.dropped++
		return
	}
	at.held = append(at.held, heldPacket{frame, now, place})
	select {
	case s.knocks <- at.key:
	default: // the client's retry knocks again
	}
}

// place takes a place for one more packet of the service.
func (at *sleeper) place(all *bounded.Pool[pando.Tenant]) (*bounded.Hold[pando.Tenant], error) {
	if len(at.held) >= heldPerService {
		return nil, pando.ErrRefused
	}
	if at.key.Tenant == pando.DefaultTenant {
		return all.TakeAsOperator(1)
	}
	return all.Take(at.key.Tenant, 1)
}

// publish lets a service sleep, or wakes it: its table is in force, so its packets find the
// endpoint. The driver's lock is held.
func (s *sleepers) publish(n uint32, t pando.SteeringTable) error {
	takes := slices.ContainsFunc(t.Endpoints, func(e pando.Endpoint) bool { return e.Weight > 0 })
	sleeps := t.Asleep && !takes
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.routes, n); !takes && t.Via4.IsValid() {
		s.routes[n] = true
	}
	if sleeps && s.of[n] == nil {
		s.of[n] = &sleeper{key: t.Service}
	}
	var v steerService
	if err := s.objects.Services.Lookup(n, &v); err != nil {
		return err
	}
	if want := map[bool]uint32{true: 1}[sleeps]; v.Asleep != want {
		v.Asleep = want
		if err := s.objects.Services.Put(n, v); err != nil {
			return err
		}
	}
	at := s.of[n]
	if sleeps || at == nil {
		return nil
	}
	s.drop(n)
	now, err := monotonic()
	if err != nil {
		return err
	}
	for _, h := range at.held {
		if isOld(h, now) {
			s.dropped++
			continue
		}
		if err := s.send(h.frame, s.routes[n]); err != nil {
			s.dropped++
		}
	}
	return nil
}

// forget drops the packets of a service that is withdrawn.
func (s *sleepers) forget(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.routes, n)
	if at := s.of[n]; at != nil {
		s.dropped += uint64(len(at.held))
		s.drop(n)
	}
}

// drop forgets a service. The caller holds the lock.
func (s *sleepers) drop(n uint32) {
	for _, h := range s.of[n].held {
		h.place.Close()
	}
	delete(s.of, n)
}

// send sends a frame out of pando0, or by the route to the host that serves it: from_host refuses a
// packet without an endpoint here.
func (s *sleepers) send(frame []byte, routed bool) error {
	if packet := frame[ethBytes:]; routed && len(packet) >= ip4Bytes {
		if binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP {
			to := &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}
			return unix.Sendto(s.routed[0], packet, unix.MSG_DONTWAIT, to)
		}
		if len(packet) >= ip6Bytes {
			to := &unix.SockaddrInet6{Addr: [16]byte(packet[24:40])}
			return unix.Sendto(s.routed[1], packet, unix.MSG_DONTWAIT, to)
		}
	}
	to := &unix.SockaddrLinklayer{Ifindex: s.ifindex,
		Protocol: binary.NativeEndian.Uint16(frame[12:14])}
	return unix.Sendto(s.socket, frame, unix.MSG_DONTWAIT, to)
}

// Offsets in a frame without IP options.
const (
	ethBytes = 14
	ip4Bytes = 20
	ip6Bytes = 40
	tcpSum   = 16
	udpSum   = 6
)

// layers returns the protocol of a frame, its addresses and its transport part. ok is false for a
// frame with options, which stays as it is.
func layers(f []byte) (protocol byte, addresses, transport []byte, ok bool) {
	if len(f) < ethBytes+ip4Bytes {
		return 0, nil, nil, false
	}
	ip := f[ethBytes:]
	switch {
	case binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_IP && ip[0] == 0x45:
		size := int(binary.BigEndian.Uint16(ip[2:]))
		if size < ip4Bytes || size > len(ip) {
			return 0, nil, nil, false
		}
		return ip[9], ip[12:20], ip[ip4Bytes:size], true
	case binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_IPV6 && len(ip) >= ip6Bytes:
		size := ip6Bytes + int(binary.BigEndian.Uint16(ip[4:]))
		if size > len(ip) {
			return 0, nil, nil, false
		}
		return ip[6], ip[8:40], ip[ip6Bytes:size], true
	}
	return 0, nil, nil, false
}

// seal writes the checksum that a network card would have written.
func seal(f []byte) {
	protocol, addresses, body, ok := layers(f)
	at := tcpSum
	switch {
	case !ok:
		return
	case protocol == protocols[pando.UDP]:
		at = udpSum
	case protocol != protocols[pando.TCP]:
		return
	}
	if len(body) < at+2 {
		return
	}
	body[at], body[at+1] = 0, 0
	sum := uint32(protocol) + uint32(len(body))
	for _, part := range [][]byte{addresses, body} {
		for n := 0; n+1 < len(part); n += 2 {
			sum += uint32(part[n])<<8 | uint32(part[n+1])
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	value := ^uint16(sum)
	if value == 0 && at == udpSum {
		value = 0xffff
	}
	binary.BigEndian.PutUint16(body[at:], value)
}

// isAgain reports whether a frame is the SYN of the same connection.
func isAgain(f, g []byte) bool {
	p, from, was, ok := layers(f)
	q, to, now, ok2 := layers(g)
	return ok && ok2 && p == q && p == protocols[pando.TCP] && bytes.Equal(from, to) &&
		len(was) >= 4 && len(now) >= 4 && bytes.Equal(was[:4], now[:4])
}
