package firewall

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Walls take over the tables of a former build, which were larger, with their entries.
func TestLargerTablesAreTakenOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("maps need root")
	}
	_, inner, pins := open(t)
	for _, name := range formerSizes {
		path := filepath.Join(pins, name)
		now, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ebpf.NewMap(&ebpf.MapSpec{
			Name: name, Type: now.Type(), KeySize: now.KeySize(), ValueSize: now.ValueSize(),
			MaxEntries: 2 * now.MaxEntries(), Flags: now.Flags() &^ unix.BPF_F_NO_PREALLOC,
		})
		now.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := m.Put(make([]byte, m.KeySize()), make([]byte, m.ValueSize())); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := m.Pin(path); err != nil {
			t.Fatal(err)
		}
	}
	next, err := Open(inner, pins)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for _, m := range []*ebpf.Map{next.objects.Walls, next.objects.Owners} {
		value := make([]byte, m.ValueSize())
		if err := m.Lookup(make([]byte, m.KeySize()), value); err != nil || m.Flags() != 0 {
			t.Errorf("%v is not the former table: %v", m, err)
		}
	}
}

// The walls of a host with few instances take less than 2.5 MB. The kernel reports the memory of
// each map.
func TestTheWallsOfAFewInstancesAreSmall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("maps need root")
	}
	w, _, _ := open(t)
	sum := 0
	for _, m := range []*ebpf.Map{w.objects.Walls, w.objects.Owners, w.objects.Names} {
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		bytes, ok := info.Memlock()
		if !ok {
			t.Fatalf("the kernel reports no memory of %s", m)
		}
		sum += int(bytes)
	}
	if sum >= 2_500_000 {
		t.Errorf("the maps take %d bytes", sum)
	}
	t.Logf("%d bytes", sum)
}
