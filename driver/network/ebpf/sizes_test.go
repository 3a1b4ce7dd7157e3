package ebpf

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A driver takes over the tables of a former build of this layout, which were larger. They are
// those tables, with their entries. Scores come into force without mapped memory, by system calls.
func TestLargerTablesAreTakenOver(t *testing.T) {
	f := openFaulty(t)
	dir := pins(f.PinDir).tables(layout)
	for _, name := range formerSizes {
		path := filepath.Join(dir, name)
		now, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		former := &ebpf.MapSpec{
			Name: name, Type: now.Type(), KeySize: now.KeySize(), ValueSize: now.ValueSize(),
			MaxEntries: 2 * now.MaxEntries(), Flags: now.Flags(),
		}
		if name == "links" { // it was made with room for all entries
			former.MaxEntries, former.Flags = now.MaxEntries(), now.Flags()&^unix.BPF_F_NO_PREALLOC
		}
		if name == "policies" || name == "scores" { // they were made without mapped memory
			former.MaxEntries, former.Flags = now.MaxEntries(), now.Flags()&^unix.BPF_F_MMAPABLE
		}
		m, err := ebpf.NewMap(former)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := m.Pin(path); err != nil {
			t.Fatal(err)
		}
		m.Close()
		now.Close()
	}
	again, err := Open(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if n := again.objects.Fragments.MaxEntries(); n != 2*4096 {
		t.Errorf("the table of fragments has %d places, want those of the former build", n)
	}
	if flags := again.objects.Links.Flags(); flags != 0 {
		t.Errorf("the table of links has the flags %d, want those of the former build", flags)
	}
	publishScored(t, again)
	if err := again.Score(t.Context(), scored, ranking); err != nil {
		t.Fatal(err)
	}
	holds(t, again, map[pando.InstanceID]uint32{"a": scoreOne / 4, "b": scoreOne + excluded})
}

// The tables of a host with few services take less than 40 MB, with the ring and a slab
// of buckets. The kernel reports the memory of each map.
func TestTheTablesOfAFewServicesAreSmall(t *testing.T) {
	f := openFaulty(t)
	if err := f.Purge(); err != nil {
		t.Fatal(err)
	}
	c := f.Config
	c.FlowsMax = 0 // as in production
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	publishScored(t, d)
	var maps []*ebpf.Map
	for all, n := reflect.ValueOf(d.objects.steerMaps), 0; n < all.NumField(); n++ {
		maps = append(maps, all.Field(n).Interface().(*ebpf.Map))
	}
	for _, s := range d.tables.slabs {
		if s != nil {
			maps = append(maps, s.chunks)
		}
	}
	sum := 0
	for _, m := range maps {
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
	if sum >= 40e6 {
		t.Errorf("the maps take %d bytes", sum)
	}
	t.Logf("%d bytes", sum)
}
