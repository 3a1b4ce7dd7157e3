package ebpf

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// spread gives every bucket to an endpoint with a weight, in turn.
func spread(_ []string, weights []int, size int) []uint16 {
	var takers []uint16
	for n, w := range weights {
		if w > 0 {
			takers = append(takers, uint16(n))
		}
	}
	if len(takers) == 0 {
		return nil
	}
	out := make([]uint16, size)
	for n := range out {
		out[n] = takers[n%len(takers)]
	}
	return out
}

// faulty is a driver with a map that fails: its descriptor is closed while a call runs.
type faulty struct {
	*Driver
	t *testing.T
}

func openFaulty(t *testing.T) faulty {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("maps need root")
	}
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/sys/fs/bpf/pando-faults-%d", os.Getpid())
	d, err := Open(Config{PinDir: dir, FlowsMax: 1 << 10, Buckets: spread})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Purge(); err != nil {
			t.Error(err)
		}
	})
	return faulty{d, t}
}

// without runs a call while a map fails.
func (f faulty) without(name string, call func() error) error {
	f.t.Helper()
	at := map[string]**ebpf.Map{
		"ports": &f.objects.Ports, "vips": &f.objects.Vips, "services": &f.objects.Services,
		"endpoints": &f.objects.Endpoints, "endpoint_names": &f.objects.EndpointNames,
		"service_names": &f.objects.ServiceNames, "traffic": &f.objects.Traffic,
		"links": &f.objects.Links, "translations": &f.objects.Translations,
		"arrivals": &f.objects.Arrivals, "aways": &f.objects.Aways, "doors": &f.objects.Doors,
	}[name]
	if err := (*at).Close(); err != nil {
		f.t.Fatal(err)
	}
	result := call()
	m, err := ebpf.LoadPinnedMap(filepath.Join(pins(f.PinDir).tables(layout), name), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	*at = m
	return result
}

// placesUsed returns the chunks that the records name, and those that the allocator gave away.
func (f faulty) placesUsed() (named, taken int) {
	f.t.Helper()
	services, err := all[steerService](f.objects.Services)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, s := range services {
		named += chunksOf(s.Places[0]) + chunksOf(s.Places[1])
	}
	for _, s := range f.tables.slabs {
		if s == nil {
			continue
		}
		free := *s.blocks
		for size := slabChunks; size > 0; size /= 2 {
			for {
				if _, ok := free.take(size); !ok {
					break
				}
				taken -= size
			}
		}
		taken += slabChunks
	}
	return named, taken
}

// owners returns the instances that the active table of a service names.
func (f faulty) owners(s pando.ServiceKey) (out []string) {
	f.t.Helper()
	var v steerService
	if err := f.objects.Services.Lookup(f.index.services[s], &v); err != nil {
		f.t.Fatal(err)
	}
	at := v.Active & 1
	if v.Endpoints[at] == 0 {
		return nil
	}
	seen := map[uint16]bool{}
	for n := range uint32(chunksOf(v.Places[at])) {
		var c chunk
		k := v.Places[at].Chunk + n
		if err := f.tables.slabs[k/slabChunks].chunks.Lookup(k%slabChunks, &c); err != nil {
			f.t.Fatal(err)
		}
		for _, e := range c.Endpoint {
			seen[e] = true
		}
	}
	for slot := range seen {
		out = append(out, string(f.index.names[uint32(slot)]))
	}
	slices.Sort(out)
	return out
}

// Every map fails at random during publications and withdrawals. A call that needs the map returns
// an error. Its repetition puts the wanted table into force, and no chunk of the tables is lost.
func TestAFailedPublicationIsRepeated(t *testing.T) {
	f := openFaulty(t)
	random := rand.New(rand.NewPCG(7, 7))
	maps := []string{"ports", "vips", "services", "endpoints", "endpoint_names", "service_names",
		"traffic"}
	failed, known := 0, map[pando.ServiceKey]bool{}
	for step := range 300 {
		n := random.IntN(6)
		table := pando.SteeringTable{
			Service: pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%d", n))),
			VIP4:    netip.AddrFrom4([4]byte{10, 127, 1, byte(n)}),
			Ports: []pando.Port{{Published: 80, Target: uint16(8080 + random.IntN(2)),
				Protocol: pando.TCP}},
		}
		var want []string
		for i := range random.IntN(20) {
			e := pando.Endpoint{Instance: pando.InstanceID(fmt.Sprintf("s%d-%d", n, random.IntN(3)*100+i)),
				Weight: 100 * random.IntN(2), Link: pando.Link{IfIndex: 1 + i,
					MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, HostMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}}
			table.Endpoints = append(table.Endpoints, e)
			if e.Weight > 0 {
				want = append(want, string(e.Instance))
			}
		}
		call := func() error { return f.Publish(t.Context(), table) }
		if random.IntN(8) == 0 {
			call = func() error { return f.Withdraw(t.Context(), table.Service) }
			delete(known, table.Service)
		} else {
			known[table.Service] = true
		}
		if err := f.without(maps[random.IntN(len(maps))], call); err != nil {
			failed++
		}
		if !known[table.Service] && random.IntN(2) == 0 { // it comes back instead
			known[table.Service] = true
			call = func() error { return f.Publish(t.Context(), table) }
		}
		if err := call(); err != nil {
			t.Fatalf("step %d: the repetition: %v", step, err)
		}
		if !known[table.Service] {
			continue
		}
		slices.Sort(want)
		if got := f.owners(table.Service); !slices.Equal(got, want) {
			t.Fatalf("step %d: %v get flows, want %v", step, got, want)
		}
		if named, taken := f.placesUsed(); named != taken {
			t.Fatalf("step %d: %d chunks are taken, the services have %d", step, taken, named)
		}
	}
	if failed < 75 {
		t.Errorf("only %d of 300 calls failed", failed)
	}
	again, err := Open(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if len(again.index.services) != len(known) || len(again.index.names) != len(f.index.names) {
		t.Errorf("another driver finds %d services and %d endpoints, want %d and %d",
			len(again.index.services), len(again.index.names), len(known), len(f.index.names))
	}
}

// Connect fails at random, and its repetition leaves the wanted ports.
func TestAFailedConnectIsRepeated(t *testing.T) {
	f := openFaulty(t)
	l := pando.Link{IfIndex: 1, Host: "lo", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	for n, name := range []string{"links", "translations", "links", "translations"} {
		ports := []pando.Port{{Published: 80, Target: uint16(8000 + n), Protocol: pando.TCP}}
		call := func() error {
			return f.Connect(t.Context(), l, ports, netip.MustParseAddr("10.127.0.9"), netip.Addr{})
		}
		if err := f.without(name, call); err == nil {
			t.Fatalf("no error without %s", name)
		}
		if err := call(); err != nil {
			t.Fatal(err)
		}
		var target uint16
		key := steerPortKey{Ifindex: 1, Port: network(80), Protocol: 6}
		if err := f.objects.Translations.Lookup(key, &target); err != nil ||
			network(target) != uint16(8000+n) {
			t.Fatalf("port 80 leads to %d, %v; want %d", network(target), err, 8000+n)
		}
	}
}
