package steering

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/ebpf"
)

func grown(b *testing.B, n int) (*ebpf.Driver, pando.SteeringTable) {
	b.Helper()
	d := openBench(b)
	t := pando.SteeringTable{Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts}
	for i := range n {
		l := pando.Link{IfIndex: 1, Host: "lo", MAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, HostMAC: net.HardwareAddr{2, 1, 0, 0, 0, 0}}
		t.Endpoints = append(t.Endpoints, pando.Endpoint{Instance: pando.InstanceID(fmt.Sprintf("web-%d", i)), Weight: 100, Link: l})
	}
	if err := d.Connect(b.Context(), t.Endpoints[0].Link, webPorts, vip[0], vip[1]); err != nil {
		b.Fatal(err)
	}
	if err := d.Publish(b.Context(), t); err != nil {
		b.Fatal(err)
	}
	return d, t
}

func openBench(b *testing.B) *ebpf.Driver {
	b.Helper()
	s := openSize(&testing.T{}, 1<<20)
	b.Cleanup(func() { _ = s.Purge() })
	return s.(tcx).Driver
}

func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{4, 64, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d, t := grown(b, n)
			for b.Loop() {
				t.Endpoints[0].Weight ^= 1
				if err := d.Publish(b.Context(), t); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPacket(b *testing.B) {
	for _, n := range []int{4, 1024} {
		for six, family := range []string{"IPv4", "IPv6"} {
			b.Run(fmt.Sprint(family, " ", n), func(b *testing.B) {
				d, _ := grown(b, n)
				mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
				p := tcp(netip.AddrPortFrom(far[six], 1), netip.AddrPortFrom(vip[six], 443), "S").Bytes(mac, mac)
				if _, _, err := d.Measure(ebpf.FromOutside, p, 1); err != nil {
					b.Fatal(err)
				}
				p = tcp(netip.AddrPortFrom(far[six], 1), netip.AddrPortFrom(vip[six], 443), "A").Bytes(mac, mac)
				for b.Loop() {
				}
				for range 5 {
					a, t, err := d.Measure(ebpf.FromOutside, p, 5000000)
					_, z, err2 := d.Measure(ebpf.Nothing, p, 5000000)
					_, r, _ := d.Measure(ebpf.FromInstance, tcp(netip.AddrPortFrom(vip[six], 443), netip.AddrPortFrom(far[six], 1), "A").Bytes(mac, mac), 5000000)
					b.Logf("%d %v - %v = %v %v %v; reply %v", a, t, z, t-z, err, err2, r-z)
				}
			})
		}
	}
}
