package steering

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/driver/network/ebpf"
)

// BenchmarkPublish measures one change of a service with n endpoints: with the shares computed
// ("whole"), and without ("in place").
func BenchmarkPublish(b *testing.B) {
	ready := map[int][]uint16{}
	inPlace := func(ids []string, weights []int, size int) []uint16 {
		n := len(ids)*2 + weights[0]&1
		if ready[n] == nil {
			ready[n] = balance.Buckets(ids, weights, size)
		}
		return ready[n]
	}
	for name, buckets := range map[string]func([]string, []int, int) []uint16{
		"whole": balance.Buckets, "in place": inPlace,
	} {
		for _, n := range []int{4, 1024} {
			b.Run(fmt.Sprint(name, " ", n), func(b *testing.B) {
				d, err := ebpf.Open(ebpf.Config{PinDir: pins, Buckets: buckets, FlowsMax: 1 << 16})
				if err != nil {
					b.Fatal(err)
				}
				defer func() {
					if err := d.Purge(); err != nil {
						b.Error(err)
					}
				}()
				t := pando.SteeringTable{Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts}
				for i := range n {
					l := pando.Link{IfIndex: 1, MAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)},
						HostMAC: net.HardwareAddr{2, 1, 0, 0, 0, 0}}
					t.Endpoints = append(t.Endpoints,
						pando.Endpoint{Instance: pando.InstanceID(fmt.Sprintf("web-%d", i)), Weight: 100, Link: l})
				}
				for b.Loop() {
					t.Endpoints[0].Weight ^= 1
					if err := d.Publish(b.Context(), t); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkPacket measures the program for a packet of an established flow, and for a SYN that
// begins a flow. After 65,536 flows, the table of opening flows is full.
func BenchmarkPacket(b *testing.B) {
	const times = 1_000_000
	d, err := ebpf.Open(ebpf.Config{PinDir: pins, Buckets: balance.Buckets})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := d.Purge(); err != nil {
			b.Error(err)
		}
	}()
	l := pando.Link{IfIndex: 1, Host: "lo", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		HostMAC: net.HardwareAddr{2, 1, 0, 0, 0, 0}}
	t := pando.SteeringTable{Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts,
		Endpoints: []pando.Endpoint{{Instance: "web-0", Weight: 100, Link: l}}}
	if err := d.Connect(b.Context(), l, webPorts, vip[0], vip[1]); err != nil {
		b.Fatal(err)
	}
	if err := d.Publish(b.Context(), t); err != nil {
		b.Fatal(err)
	}
	frames := [2][]byte{}
	client, to := netip.AddrPortFrom(far[0], 4000), netip.AddrPortFrom(vip[0], 443)
	for n, p := range []Packet{tcp(client, to, "A"), udp(client, netip.AddrPortFrom(vip[0], 123))} {
		frames[n] = p.Bytes(l.MAC, l.HostMAC)
	}
	syn := tcp(client, to, "S").Bytes(l.MAC, l.HostMAC)
	answer := tcp(to, client, "SA")
	answer.Seq = 499 // the client acknowledges 500
	synAck := answer.Bytes(l.MAC, l.HostMAC)
	for _, first := range []struct {
		at    ebpf.Hook
		frame []byte
	}{{ebpf.FromOutside, syn}, {ebpf.FromInstance, synAck}, {ebpf.FromOutside, frames[0]}} {
		if _, _, err := d.Try(first.at, l.IfIndex, first.frame, false); err != nil {
			b.Fatal(err)
		}
	}
	for n, name := range []string{"TCP", "UDP"} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				_, each, err := d.Measure(ebpf.FromOutside, frames[n], times)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
			}
		})
	}
	b.Run("new flow", func(b *testing.B) {
		var sum int64
		for n := range b.N {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}),
				uint16(1024+n>>16))
			_, each, err := d.Measure(ebpf.FromOutside, tcp(from, to, "S").Bytes(l.MAC, l.HostMAC), 1)
			if err != nil {
				b.Fatal(err)
			}
			sum += each.Nanoseconds()
		}
		b.ReportMetric(float64(sum)/float64(b.N), "ns/packet")
	})
}
