package steering

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"pando.run/pando"
)

// former is the steering of layout 1, as the builds before layout 2 left it: their programs, their
// tables and their pins. testdata/layout1.o is the object of those builds.
type former struct {
	pando.Steering // no other method is called
	t              *testing.T
	maps           map[string]*ebpf.Map
	programs       map[string]*ebpf.Program
}

// The records of layout 1 that have changed since.
type (
	service1 struct{ Active, First, Second, Pad uint32 }
	table1   struct{ Endpoint [16384]uint16 }
	name1    struct {
		Service, Used uint32
		Text          [128]byte
	}
)

func openFormer(t *testing.T, uplinks ...string) Subject {
	t.Helper()
	check(t, rlimit.RemoveMemlock())
	dir := filepath.Join(pins, "layout-1")
	check(t, errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(filepath.Join(pins, "links"), 0o700)))
	spec, err := ebpf.LoadCollectionSpec("testdata/layout1.o")
	check(t, err)
	gateway6, vips6 := pando.Gateway6.As16(), pando.VIPs6.Addr().As16()
	word := func(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
	gateway, net4 := pando.Gateway4.As4(), pando.VIPs4.Addr().As4()
	for name, v := range map[string]any{
		"vip_net": word(net4[:]), "vip_mask": word([]byte{255, 255, 0, 0}), "gateway": word(gateway[:]),
		"vip6_net": [2]uint32{word(vips6[:]), word(vips6[4:])},
		"gateway6": [4]uint32{
			word(gateway6[:]), word(gateway6[4:]), word(gateway6[8:]), word(gateway6[12:]),
		},
	} {
		check(t, spec.Variables[name].Set(v))
	}
	for name, m := range spec.Maps {
		if name[0] != '.' {
			m.Pinning = ebpf.PinByName
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		Maps: ebpf.MapOptions{PinPath: dir},
	})
	check(t, err)
	t.Cleanup(c.Close)
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		check(t, os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
	}
	f := &former{t: t, maps: c.Maps, programs: c.Programs}
	for _, name := range uplinks {
		l, err := net.InterfaceByName(name)
		check(t, err)
		f.attach("uplink-"+name, l.Index, "from_outside")
	}
	return f
}

func (f *former) attach(pin string, ifindex int, program string) {
	f.t.Helper()
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: ifindex, Program: f.programs[program], Attach: ebpf.AttachTCXIngress,
	})
	check(f.t, err)
	check(f.t, errors.Join(l.Pin(filepath.Join(pins, "links", pin)), l.Close()))
}

func (f *former) put(table string, key, value any) {
	f.t.Helper()
	check(f.t, f.maps[table].Put(key, value))
}

func words1(a netip.Addr) (w [4]uint32) {
	b := a.As16()
	for n := range w {
		w[n] = binary.NativeEndian.Uint32(b[4*n:])
	}
	return w
}

func network1(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

var protocols1 = map[pando.Protocol]uint8{pando.TCP: 6, pando.UDP: 17}

type (
	portKey1 struct {
		Ifindex        uint32
		Port           uint16
		Protocol, Goes uint8
	}
	serviceKey1 struct {
		Addr          [4]uint32
		Port          uint16
		Protocol, Pad uint8
	}
	link1 struct {
		Addr, VIP [2][4]uint32
		MAC       [6]byte
		Pad       [2]byte
	}
	endpoint1 struct {
		Ifindex, Epoch uint32
		MAC, HostMAC   [6]byte
		Service        uint32
	}
)

// Connect implements pando.Steering.
func (f *former) Connect(
	_ context.Context, l pando.Link, ports []pando.Port, vip4, vip6 netip.Addr,
) error {
	index := uint32(l.IfIndex)
	for _, p := range ports {
		out, in := network1(p.Published), network1(p.Target)
		f.put("translations", portKey1{index, out, protocols1[p.Protocol], 0}, in)
		f.put("translations", portKey1{index, in, protocols1[p.Protocol], 1}, out)
	}
	v := link1{}
	v.Addr[0][0], v.Addr[1] = words1(l.IP4)[3], words1(l.IP6)
	v.VIP[0][0], v.VIP[1] = words1(vip4)[3], words1(vip6)
	copy(v.MAC[:], l.MAC)
	f.put("links", index, v)
	f.attach(l.Host, l.IfIndex, "from_instance")
	return nil
}

// Publish implements pando.Steering for the service with number 7. Its endpoints have the numbers
// from 20, and equal shares.
func (f *former) Publish(_ context.Context, t pando.SteeringTable) error {
	const number, first = uint32(7), 20
	name := name1{number, 1, [128]byte{}}
	copy(name.Text[:], string(t.Service.Tenant)+"/"+string(t.Service.Name))
	f.put("service_names", number, name)
	var table table1
	for n := range table.Endpoint {
		table.Endpoint[n] = uint16(first + n*7%len(t.Endpoints))
	}
	for n, e := range t.Endpoints {
		v := endpoint1{Ifindex: uint32(e.Link.IfIndex), Epoch: 3, Service: number}
		copy(v.MAC[:], e.Link.MAC)
		copy(v.HostMAC[:], e.Link.HostMAC)
		f.put("endpoints", uint32(first+n), v)
		copy(name.Text[:], make([]byte, len(name.Text)))
		copy(name.Text[:], e.Instance)
		f.put("endpoint_names", uint32(first+n), name)
	}
	f.put("tables", number*2+1, table)
	f.put("services", number, service1{Active: 1, Second: 1})
	for _, vip := range []netip.Addr{t.VIP4, t.VIP6} {
		for _, p := range t.Ports {
			f.put("ports", serviceKey1{words1(vip), network1(p.Published), protocols1[p.Protocol], 0},
				number)
		}
		f.put("vips", words1(vip), number)
	}
	return nil
}

func (f *former) Try(Place, pando.Link, []byte, bool) (Outcome, error) {
	return Outcome{}, errors.ErrUnsupported
}

func (f *former) Purge() error { return nil }

// TestUpgradeFromLayout1 lets this build take over from the builds of layout 1 while connections
// are open, opened and used. None breaks, and this build knows them all.
func TestUpgradeFromLayout1(t *testing.T) {
	s := newStand(t, openFormer, "a", "b")
	for name, b := range s.boxes {
		serve(t, b, name)
	}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	quiet := []*client{}
	was := map[*client]string{}
	for n := range 60 {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[n%2], 80))
		was[c] = c.who(t)
		quiet = append(quiet, c)
	}
	crowd := gather(t, s)
	s.Subject = openTCX(t, "out")
	known, err := s.Published(t.Context())
	if err != nil || !slices.Equal(known, []pando.ServiceKey{web}) {
		t.Errorf("the services are %v, %v; want web", known, err)
	}
	s.publish(t, s.endpoint("a", 0), s.endpoint("b", 100)) // no table restores a flow of a
	s.publish(t, s.endpoint("a", 0), s.endpoint("b", 50))
	crowd.disperse(t)
	for _, c := range quiet {
		if who := c.who(t); who != was[c] {
			t.Fatalf("a connection to %s is answered by %s", was[c], who)
		}
	}
	r := s.sweep(t)
	if r.Flows["a"]+r.Flows["b"] < len(quiet) || r.Flows["a"] < 10 {
		t.Errorf("flows are %v, want at least %d", r.Flows, len(quiet))
	}
	if left, err := filepath.Glob(filepath.Join(pins, "layout-1*")); err != nil || len(left) > 0 {
		t.Errorf("the tables of layout 1 are left: %v, %v", left, err)
	}
}
