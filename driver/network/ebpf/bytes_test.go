package ebpf

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"pgregory.net/rapid"

	"pando.run/pando"
)

func drawAddress(t *rapid.T, size int) netip.Addr {
	a, ok := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "address"))
	if !ok {
		t.Fatal("no address")
	}
	return a
}

// Every address and port reads back from its form in the tables.
func TestAddressesAndPortsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		four, six := drawAddress(t, 4), drawAddress(t, 16)
		if got := address(native(four)); got != four {
			t.Errorf("%s became %s", four, got)
		}
		if got := address6(words(four)); got != four {
			t.Errorf("%s became %s in the tables of both families", four, got)
		}
		if got := address6(words(six)); got != six.Unmap() {
			t.Errorf("%s became %s", six, got)
		}
		port := rapid.Uint16().Draw(t, "port")
		if network(network(port)) != port {
			t.Errorf("port %d became %d", port, network(network(port)))
		}
	})
	if words(netip.Addr{}) != [4]uint32{} || native(netip.MustParseAddr("::1")) != 0 {
		t.Error("an address that a family does not have is not zero")
	}
}

// A key of the connection table leads back to the client and to the VIP with the published port.
func TestAFlowReadsBackFromItsKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vip4, vip6 := pando.VIPs4.Addr().As4(), pando.VIPs6.Addr().As16()
		vip4[3], vip6[15] = rapid.Byte().Draw(t, "VIP"), rapid.Byte().Draw(t, "VIP6")
		ports := func() uint16 { return rapid.Uint16().Draw(t, "port") }
		e := entry{
			client:   netip.AddrPortFrom(drawAddress(t, 4), ports()),
			vip:      netip.AddrPortFrom(netip.AddrFrom4(vip4), ports()),
			protocol: 6,
		}
		k := key4(e)
		if address(k.Client) != e.client.Addr() || network(k.ClientPort) != e.client.Port() ||
			vipAt(k.Vip) != e.vip.Addr() || network(k.Port) != e.vip.Port() {
			t.Errorf("%v became %+v", e, k)
		}
		e.client = netip.AddrPortFrom(drawAddress(t, 16), ports())
		e.vip = netip.AddrPortFrom(netip.AddrFrom16(vip6), ports())
		k6 := key6(e)
		if words(e.client.Addr()) != k6.Client || vip6At(k6.Vip) != e.vip.Addr() ||
			network(k6.Port) != e.vip.Port() {
			t.Errorf("%v became %+v", e, k6)
		}
	})
}

// The names of the longest service and instance fit into their tables.
func TestTheLongestNamesFit(t *testing.T) {
	label := strings.Repeat("a", 53)
	service := label + "/" + label
	if got := textOf(nameOf(3, service)); got != service {
		t.Errorf("the service %s became %s", service, got)
	}
	if got := textOf(nameOf(3, "")); got != "" {
		t.Errorf("no name became %q", got)
	}
	if n := nameOf(3, "web"); n.Used != 1 || n.Service != 3 {
		t.Errorf("%+v", n)
	}
}

func TestALinkHasBothFamiliesOfAddresses(t *testing.T) {
	l := pando.Link{
		IP4: netip.MustParseAddr("10.128.0.2"), IP6: netip.MustParseAddr("fd70::2"),
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}
	vip4, vip6 := netip.MustParseAddr("10.127.0.9"), netip.MustParseAddr("fd70::9")
	v := linkOf(l, vip4, vip6)
	if address(v.Addr[0][0]) != l.IP4 || address6(v.Addr[1]) != l.IP6 ||
		address(v.Vip[0][0]) != vip4 || address6(v.Vip[1]) != vip6 {
		t.Errorf("%+v", v)
	}
	if net.HardwareAddr(v.Mac[:]).String() != l.MAC.String() {
		t.Errorf("MAC %v", v.Mac)
	}
	if only4 := linkOf(pando.Link{IP4: l.IP4}, vip4, netip.Addr{}); only4.Addr[1] != [4]uint32{} ||
		only4.Vip[1] != [4]uint32{} {
		t.Errorf("an instance without IPv6: %+v", only4)
	}
}

// structOf returns a struct type with fields of these sizes, one after the other.
func structOf(name string, fields ...btf.Member) *btf.Struct {
	s := &btf.Struct{Name: name}
	for _, f := range fields {
		size, err := btf.Sizeof(f.Type)
		if err != nil {
			panic(err)
		}
		f.Offset = btf.Bits(s.Size * 8)
		s.Members = append(s.Members, f)
		s.Size += uint32(size)
	}
	return s
}

// specOf returns the types as a BTF specification.
func specOf(t *testing.T, types ...btf.Type) *btf.Spec {
	t.Helper()
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := btf.LoadSpecFromReader(strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// An upgrade of a table keeps the fields that both layouts have, wherever they are.
func TestAConversionMovesFieldsByName(t *testing.T) {
	u16, u32 := &btf.Int{Name: "u16", Size: 2}, &btf.Int{Name: "u32", Size: 4}
	was := structOf("flow", btf.Member{Name: "seen", Type: u32}, btf.Member{Name: "gone", Type: u16},
		btf.Member{Name: "port", Type: u16})
	now := structOf("flow", btf.Member{Name: "port", Type: u16}, btf.Member{Name: "new", Type: u16},
		btf.Member{Name: "seen", Type: u32})
	c, err := conversionOf(specOf(t, was), now)
	if err != nil {
		t.Fatal(err)
	}
	got := c.apply([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	if want := []byte{7, 8, 0, 0, 1, 2, 3, 4}; string(got) != string(want) {
		t.Errorf("%v, want %v", got, want)
	}
	wider := structOf("flow", btf.Member{Name: "port", Type: u32})
	if _, err := conversionOf(specOf(t, was), wider); err == nil ||
		!strings.Contains(err.Error(), "flow.port had 2 bytes and has 4") {
		t.Errorf("a field of another size: %v", err)
	}
	if _, err := conversionOf(specOf(t, was), structOf("another")); err == nil {
		t.Error("a struct that the old layout does not have")
	}
	if c, err := conversionOf(specOf(t, was), u32); err != nil ||
		string(c.apply([]byte{1, 2, 3, 4})) != "\x01\x02\x03\x04" {
		t.Errorf("a number: %+v, %v", c, err)
	}
}
