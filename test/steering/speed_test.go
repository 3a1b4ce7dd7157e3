package steering

import (
	"fmt"
	"net"
	"testing"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/driver/ebpf"
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
