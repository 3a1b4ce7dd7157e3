package steering

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// mapsMax bounds the memory of all maps of a host with ten services.
const mapsMax = 42_000_000

// mapBytes returns the memory of all pinned maps and of the slabs.
func mapBytes(t *testing.T) (sum uint64) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(pins, "layout-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("pinned tables: %v, %v", dirs, err)
	}
	entries, err := os.ReadDir(dirs[0])
	check(t, err)
	count := func(m *ebpf.Map) {
		info, err := m.Info()
		check(t, err)
		bytes, ok := info.Memlock()
		if !ok {
			t.Skip("the kernel does not tell the memory of a map")
		}
		sum += bytes
	}
	for _, e := range entries {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dirs[0], e.Name()), nil)
		check(t, err)
		count(m)
		if m.Type() == ebpf.ArrayOfMaps {
			var n uint32
			var inner *ebpf.Map
			for i := m.Iterate(); i.Next(&n, &inner); {
				count(inner)
				inner.Close()
			}
		}
		m.Close()
	}
	return sum
}

// numbered returns the table of the service with a number, with so many endpoints.
func numbered(n, endpoints int) pando.SteeringTable {
	v6 := pando.VIPs6.Addr().As16()
	v6[14], v6[15] = byte((n+2)>>8), byte(n+2)
	t := pando.SteeringTable{
		Service: pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%d", n))),
		VIP4:    netip.AddrFrom4([4]byte{10, 127, byte((n + 2) >> 8), byte(n + 2)}),
		VIP6:    netip.AddrFrom16(v6),
		Ports:   []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP}},
	}
	for e := range endpoints {
		l := pando.Link{IfIndex: 1, MAC: net.HardwareAddr{2, 0, 0, byte(e), byte(n >> 8), byte(n)},
			HostMAC: net.HardwareAddr{2, 1, 0, 0, 0, 0}}
		t.Endpoints = append(t.Endpoints, pando.Endpoint{Weight: 100, Link: l,
			Instance: pando.InstanceID(fmt.Sprintf("s%d-%d", n, e))})
	}
	return t
}

// TestTenThousandServices publishes services up to the goal. The maps of ten take at most 40 MB.
// The last publication costs like the first, and another driver finds all of them. Nothing is left
// of them after their withdrawal.
func TestTenThousandServices(t *testing.T) {
	const services, local = 10_000, 3000 // local ones have an instance here
	d := openSize(t, 0).(tcx)
	t.Cleanup(func() { check(t, d.Purge()) })
	took := make([]time.Duration, services)
	var ten uint64
	for n := range services {
		table := numbered(n, 0)
		if n < 10 || n >= services-local {
			table = numbered(n, 1+n%2)
		}
		began := time.Now()
		check(t, d.Publish(t.Context(), table))
		took[n] = time.Since(began)
		if n == 9 {
			if ten = mapBytes(t); ten > mapsMax {
				t.Errorf("the maps of ten services take %d bytes, want at most %d", ten, mapsMax)
			}
		}
	}
	all := mapBytes(t)
	middle := func(part []time.Duration) time.Duration {
		return slices.Sorted(slices.Values(part))[len(part)/2]
	}
	early, late := middle(took[10:510]), middle(took[services-local-500:services-local])
	t.Logf("maps: %.1f MB for ten, %.1f MB for %d; a publication %v and %v",
		float64(ten)/1e6, float64(all)/1e6, services, early, late)
	if late > 5*early {
		t.Errorf("a publication took %v at first and %v at last", early, late)
	}
	again := openSize(t, 0).(tcx)
	check(t, d.Close())
	d = again
	known, err := d.Published(t.Context())
	if check(t, err); len(known) != services {
		t.Fatalf("another driver finds %d services, want %d", len(known), services)
	}
	for n := range services {
		check(t, d.Withdraw(t.Context(), numbered(n, 0).Service))
	}
	_, err = d.Sweep(t.Context())
	check(t, err)
	check(t, d.Publish(t.Context(), numbered(0, 1)))
	if left := mapBytes(t); left > ten {
		t.Errorf("the maps take %d bytes after all services went, %d with ten", left, ten)
	}
}

// TestOneServiceMoreThanTheTablesHold checks that the service beyond the limit is refused and harms
// no other. Control refuses it before that.
func TestOneServiceMoreThanTheTablesHold(t *testing.T) {
	d := openSize(t, 1<<10).(tcx)
	t.Cleanup(func() { check(t, d.Purge()) })
	for n := range pando.ServicesMax {
		table := numbered(n, 0)
		table.VIP4, table.VIP6, table.Ports = netip.Addr{}, netip.Addr{}, nil
		check(t, d.Publish(t.Context(), table))
	}
	if err := d.Publish(t.Context(), numbered(pando.ServicesMax, 1)); !isTooLarge(err) {
		t.Errorf("one more: %v, want %v", err, pando.ErrTooLarge)
	}
	check(t, d.Withdraw(t.Context(), numbered(7, 0).Service))
	check(t, d.Publish(t.Context(), numbered(pando.ServicesMax, 1)))
}

// TestATableGrowsAndShrinksUnderTraffic changes the number of endpoints over all sizes of tables.
// Every established flow stays, and every new flow finds an endpoint of its service.
func TestATableGrowsAndShrinksUnderTraffic(t *testing.T) {
	s := newStand(t, openTCX, "a", "b")
	for name, b := range s.boxes {
		serve(t, b, name)
	}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	open := map[*client]string{}
	for n := range 40 {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[n%2], 80))
		open[c] = c.who(t)
	}
	port := uint16(1)
	for _, n := range []int{1, 3, 100, 1024, 3000, 40, 2} {
		e := []pando.Endpoint{s.endpoint("a", 100), s.endpoint("b", 100)}
		for i := range n - 2 {
			twin := s.endpoint("a", 100)
			twin.Instance = pando.InstanceID(fmt.Sprintf("twin-%d", i))
			e = append(e, twin)
		}
		s.publish(t, e...)
		for range 50 {
			port++
			p := tcp(netip.AddrPortFrom(far[0], port), netip.AddrPortFrom(vip[0], 80), "S")
			got, err := s.Try(Outside, s.outside.Link,
				p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC), false)
			if who := s.whose(got); err != nil || who != "a" && who != "b" {
				t.Fatalf("with %d endpoints a new flow goes to %s, %v", n, who, err)
			}
		}
		for c, was := range open {
			if who := c.who(t); who != was {
				t.Fatalf("with %d endpoints a connection to %s is answered by %s", n, was, who)
			}
		}
	}
}
