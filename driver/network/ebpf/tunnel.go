package ebpf

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	bounded "pando.run/pando/access/share"
	"pando.run/pando/driver/network/attach"
)

// TunnelDevice carries packets to instances of other hosts, and receives theirs. It is a VXLAN
// device that takes the receiver of each packet from the programs.
const TunnelDevice = "pando-tunnel"

const (
	endpointsMax = 8192 // bpf/pando.h
	// The tunnel adds these bytes to a packet, by the family of the hosts' addresses: Ethernet, VXLAN,
	// UDP and IP.
	overhead4, overhead6 = 50, 70
	// RoomMin is the least MTU inside the tunnel. IPv6 needs it (RFC 8200 §5).
	roomMin   = 1280
	tunnelMTU = 65000 // larger than any packet: the programs and the kernel's routes bound them
)

// The marks and the source address of frames in the tunnel (bpf/tunnel.h).
const toHeld = 0x02

var tunnelSource = [6]uint8{0x02, 'p', 'a', 'n', 'd', 'o'}

// tunnel is the tunnel of this host. The lock of the driver guards it.
type tunnel struct {
	objects *steerObjects
	hooks   *hooks
	ifindex int                // 0: there is none yet
	rooms   map[netip.Addr]int // the MTU inside the tunnel to another host
	wanted  bool               // there is another host, and the kernel has tunnels
}

// tag returns the name of an instance in the tunnel, the same on all hosts. Two instances of one
// host have the same with a probability of 2^-64.
func tag(s pando.ServiceKey, i pando.InstanceID) uint64 {
	sum := sha256.Sum256([]byte(s.String() + "/" + string(i)))
	return binary.BigEndian.Uint64(sum[:])
}

func (x *index) tagOf(service uint32, i pando.InstanceID) uint64 { return tag(x.keys[service], i) }

// release makes a slot free.
func (x *index) release(slot uint32) {
	if slot < endpointsMax {
		x.free = append(x.free, slot)
	} else {
		x.freeAway = append(x.freeAway, slot)
	}
}

// correctArrivals makes the table of tags agree with the endpoints of this host. A killed writer
// may have left one without the other, and the tables of an older layout have no tags.
func (x *index) correctArrivals(m *ebpf.Map) error {
	want := map[uint64]uint32{}
	for slot, name := range x.names {
		if slot < endpointsMax {
			want[x.tagOf(x.slots[slot].Service, name)] = slot
		}
	}
	return correctTags(m, want)
}

func correctTags(m *ebpf.Map, want map[uint64]uint32) error {
	var errs []error
	var gone []uint64
	var at uint64
	var slot uint32
	tags := m.Iterate()
	for tags.Next(&at, &slot) {
		if now, ok := want[at]; !ok {
			gone = append(gone, at)
		} else if now == slot {
			delete(want, at)
		}
	}
	errs = append(errs, tags.Err())
	for _, at := range gone {
		errs = append(errs, ignoreMissing(m.Delete(at)))
	}
	for at, slot := range want {
		errs = append(errs, ignoreFull(m.Put(at, slot)))
	}
	return errors.Join(errs...)
}

// add adds an endpoint of another host. The caller has called reach.
func (t *tunnel) add(x *index, service uint32, e pando.Endpoint) (uint32, error) {
	if err := x.away.admits(x.keys[service].Tenant); err != nil {
		return 0, err
	}
	last := len(x.freeAway) - 1
	if last < 0 {
		return 0, fmt.Errorf("%w: this host steers to %d endpoints of other hosts already",
			pando.ErrTooLarge, len(x.slots)-endpointsMax)
	}
	slot, name := x.freeAway[last], x.tagOf(service, e.Instance)
	v := steerEndpoint{
		Ifindex: uint32(t.ifindex), Epoch: x.slots[slot].Epoch + 1, Service: service,
		HostMac: tunnelSource, Away: awayOf(e), Tunnel: uint32(name >> 40), Remote: words(e.Remote),
	}
	var low [8]byte
	binary.BigEndian.PutUint64(low[:], name)
	copy(v.Mac[:], low[2:])
	v.Mac[0] = toHeld
	if err := t.objects.Endpoints.Put(slot, v); err != nil {
		return 0, err
	}
	if err := x.name(t.objects, service, slot, e.Instance); err != nil {
		return 0, err
	}
	x.freeAway, x.slots[slot] = x.freeAway[:last], v
	x.remember(slot, e.Instance)
	return slot, nil
}

// awayOf returns where an endpoint of another host is (enum away in bpf/pando.h).
func awayOf(e pando.Endpoint) uint32 {
	const away, silent = 1, 2
	if e.Silent {
		return silent
	}
	return away
}

// noteSilence writes whether the host of an endpoint is silent. Its flows stay.
func (x *index) noteSilence(o *steerObjects, slot uint32, e pando.Endpoint) error {
	v := x.slots[slot]
	if v.Away == 0 || v.Away == awayOf(e) {
		return nil
	}
	v.Away = awayOf(e)
	if err := o.Endpoints.Put(slot, v); err != nil {
		return err
	}
	x.slots[slot] = v
	return nil
}

// ignoreFull ignores the error of a full table. Flows to an endpoint without a tag in the table are
// asked for at each packet.
func ignoreFull(err error) error {
	if errors.Is(err, unix.E2BIG) {
		return nil
	}
	return err
}

// reach prepares the tunnel to the hosts of remote endpoints. It returns the reason for each host
// that packets of this host do not reach.
func (t *tunnel) reach(x *index, endpoints []pando.Endpoint) map[netip.Addr]error {
	out := map[netip.Addr]error{}
	for _, e := range endpoints {
		if _, known := out[e.Remote]; known || !e.Remote.IsValid() {
			continue
		}
		err := t.make(x)
		if err == nil {
			err = t.fits(e.Remote)
		}
		if err != nil {
			out[e.Remote] = err
		}
	}
	return out
}

// fits returns nil if there is a way to a host, and its packets are large enough for the tunnel.
func (t *tunnel) fits(host netip.Addr) error {
	room, ok := t.rooms[host]
	if !ok || room < roomMin { // it may have grown
		var err error
		if room, err = roomTo(host); err != nil {
			return fmt.Errorf("%w; add a route to it on this host", err)
		}
		t.rooms[host] = room
	}
	if over := overheadTo(host); room < roomMin {
		return fmt.Errorf("%w: the network to host %s takes packets of %d bytes, and a tunnel needs "+
			"%d; raise the MTU of its links, then `pando daemons restart` on this host",
			pando.ErrInvalid, host, room+over, roomMin+over)
	}
	return nil
}

func overheadTo(host netip.Addr) int {
	if host.Is4() {
		return overhead4
	}
	return overhead6
}

// TunnelBytes returns the size of the largest packet that the network to a host must take.
func TunnelBytes(host netip.Addr) int { return roomMin + overheadTo(host) }

// roomTo returns the MTU inside the tunnel to a host.
func roomTo(host netip.Addr) (int, error) {
	ways, err := netlink.RouteGet(host.AsSlice())
	if err != nil || len(ways) == 0 {
		return 0, fmt.Errorf("find the way to host %s: %w", host, err)
	}
	mtu := ways[0].MTU
	if mtu == 0 {
		dev, err := netlink.LinkByIndex(ways[0].LinkIndex)
		if err != nil {
			return 0, fmt.Errorf("find the link to host %s: %w", host, err)
		}
		mtu = dev.Attrs().MTU
	}
	return min(mtu, 1<<16-1) - overheadTo(host), nil
}

// Tunnels returns nil if this host can have the tunnel. It leaves no device: the device is made
// once there is another host.
func Tunnels() error {
	if _, err := netlink.LinkByName(TunnelDevice); err == nil {
		return nil
	}
	dev, err := makeTunnelDevice() // it is down, so no port is open
	if err != nil {
		return fmt.Errorf("try the tunnel to other hosts: %w", err)
	}
	return netlink.LinkDel(dev)
}

// admit takes tunnel packets from these hosts alone.
func (t *tunnel) admit(x *index, hosts []pando.Host) error {
	var errs []error
	if t.wanted = len(hosts) > 0; !t.wanted {
		errs = append(errs, t.remove())
	} else {
		// Without VXLAN, only a publication that needs it fails. Without a tunnel for another reason,
		// a host that was removed is still shut out.
		err := t.make(x)
		if t.wanted = !errors.Is(err, unix.EOPNOTSUPP); t.wanted {
			errs = append(errs, err)
		}
	}
	had, err := t.numbers()
	errs = append(errs, err)
	want := map[[4]uint32]uint32{}
	clear(t.rooms)
	for _, h := range hosts {
		for _, a := range []netip.Addr{h.Address, h.Address6} {
			if !a.IsValid() {
				continue
			}
			room, err := roomTo(a)
			if err == nil {
				t.rooms[a] = room
			}
			at := words(a)
			if had[at] == 0 {
				had[at] = unused(had)
			}
			want[at] = had[at]<<half | uint32(max(room, roomMin))
		}
	}
	for at := range had {
		if room, ok := want[at]; ok {
			errs = append(errs, t.objects.Peers.Put(at, steerPeer{Room: room}))
		} else {
			errs = append(errs, ignoreMissing(t.objects.Peers.Delete(at)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("admit the tunnels of other hosts: %w", err)
	}
	return nil
}

// find finds the tunnel of a former agent. Its program is replaced with the others.
func (t *tunnel) find(x *index) error {
	dev, err := netlink.LinkByName(TunnelDevice)
	if err == nil {
		err = errors.Join(t.move(x, dev.Attrs().Index),
			t.objects.TunnelDevice.Set(uint32(dev.Attrs().Index)))
	}
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	return err
}

// move leads all remote endpoints to a device that was made anew.
func (t *tunnel) move(x *index, ifindex int) error {
	for slot, v := range x.slots {
		if v.Away == 0 || v.Ifindex == uint32(ifindex) {
			continue
		}
		v.Ifindex = uint32(ifindex)
		if err := t.objects.Endpoints.Put(uint32(slot), v); err != nil {
			return err
		}
		x.slots[slot] = v
	}
	return nil
}

// remove removes the device of the tunnel, so that no port is open on a host without others.
func (t *tunnel) remove() error {
	t.ifindex = 0
	err := errors.Join(t.objects.TunnelDevice.Set(uint32(0)), t.hooks.detach(tunnelPin))
	dev, lerr := netlink.LinkByName(TunnelDevice)
	var none netlink.LinkNotFoundError
	if errors.As(lerr, &none) {
		return err
	}
	if lerr == nil {
		lerr = netlink.LinkDel(dev)
	}
	return errors.Join(err, lerr)
}

// make makes the device of the tunnel, unless it is there, and attaches its program.
func (t *tunnel) make(x *index) error {
	if t.ifindex != 0 {
		return nil
	}
	dev, err := netlink.LinkByName(TunnelDevice)
	if err != nil {
		if dev, err = makeTunnelDevice(); err != nil {
			return fmt.Errorf("make the tunnel to other hosts: %w", err)
		}
	}
	ifindex := dev.Attrs().Index
	if err := errors.Join(
		t.hooks.attach(tunnelPin, attach.Place{IfIndex: ifindex}, t.objects.FromTunnel),
		t.move(x, ifindex), netlink.LinkSetUp(dev), t.objects.TunnelDevice.Set(uint32(ifindex)),
	); err != nil {
		return fmt.Errorf("attach the tunnel to other hosts: %w", err)
	}
	t.ifindex = ifindex
	return nil
}

func makeTunnelDevice() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = TunnelDevice, tunnelMTU
	attrs.HardwareAddr = net.HardwareAddr{0x02, 't', 'u', 'n', 'n', 'l'}
	err := netlink.LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, FlowBased: true, Port: pando.TunnelPort, Learning: false,
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("this kernel has no VXLAN: %w", err)
	}
	if err != nil {
		return nil, err
	}
	dev, err := netlink.LinkByName(TunnelDevice)
	if err != nil {
		return nil, err
	}
	settings := map[string]string{"ipv4/conf/" + TunnelDevice + "/rp_filter": "0"}
	if hasIPv6() {
		settings["ipv6/conf/"+TunnelDevice+"/addr_gen_mode"] = "1" // no address of its own
	}
	for name, v := range settings {
		if err := os.WriteFile(sysctls+name, []byte(v), 0); err != nil {
			return nil, fmt.Errorf("set net/%s to %s: %w", name, v, err)
		}
	}
	return dev, netlink.LinkSetARPOff(dev)
}

// awayBound is the endpoints of other hosts to which a host steers: the slots of bpf/pando.h that are
// not for endpoints of this host.
var awayBound = bounded.Bound{Total: slotsAway, Each: slotsAway / 4, Reserve: slotsAway / 16}

const slotsAway = 32768 - endpointsMax // SLOTS_MAX of bpf/pando.h

// aways counts the endpoints of other hosts by the tenants of their services.
type aways struct {
	of  map[uint32]pando.Tenant // by slot
	use map[pando.Tenant]int64
}

func newAways() aways {
	return aways{of: map[uint32]pando.Tenant{}, use: map[pando.Tenant]int64{}}
}

// admits returns why a tenant may have no more endpoints on other hosts, or nil.
func (a aways) admits(t pando.Tenant) error {
	all := int64(len(a.of))
	u := bounded.Use{All: all, Owners: all - a.use[pando.DefaultTenant], Own: a.use[t]}
	err := awayBound.Admits(u, 1)
	if t == pando.DefaultTenant {
		err = awayBound.AdmitsOperator(u, 1)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: this host steers to endpoints of other hosts, and tenant %s has its share: %w",
		pando.ErrTooLarge, t, err)
}

// note counts a slot for a tenant.
func (a aways) note(slot uint32, t pando.Tenant) {
	a.forget(slot)
	a.of[slot] = t
	a.use[t]++
}

func (a aways) forget(slot uint32) {
	t, known := a.of[slot]
	if !known {
		return
	}
	delete(a.of, slot)
	if a.use[t]--; a.use[t] == 0 {
		delete(a.use, t)
	}
}
