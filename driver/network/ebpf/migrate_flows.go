package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// copyFlows copies the flows of the old tables, except those that the new tables have.
func (p prepared) copyFlows(t flowTable) error {
	slots, err := all[steerEndpoint](t.objects.Endpoints)
	if err != nil {
		return err
	}
	spec, err := loadSteer()
	if err != nil {
		return err
	}
	for _, name := range []string{"flows", "flows6", "guarded", "guarded6", "opening", "opening6"} {
		old, err := ebpf.LoadPinnedMap(filepath.Join(p.from, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = t.copyFrom(old, spec.Maps[name], name, slots)
		}
		if err != nil {
			return fmt.Errorf("the table %s: %w", name, err)
		}
	}
	return nil
}

func (t flowTable) copyFrom(
	old *ebpf.Map, spec *ebpf.MapSpec, name string, slots []steerEndpoint,
) error {
	defer old.Close()
	key, value, err := conversions(old, spec)
	if err != nil {
		return err
	}
	held, six := name == "flows" || name == "flows6", strings.HasSuffix(name, "6")
	return eachRaw(old, func(k, v []byte) error {
		e := entry{}
		copy(bytesOf(&e.flow), value.apply(v))
		if six {
			var k6 steerFlowKey6
			copy(bytesOf(&k6), key.apply(k))
			e.client, e.vip, e.protocol = ends6(k6)
		} else {
			var k4 steerFlowKey
			copy(bytesOf(&k4), key.apply(k))
			e.client, e.vip, e.protocol = ends4(k4)
		}
		if lost(slots, e.flow) {
			return nil
		}
		e.flow.Service = slots[e.flow.Endpoint].Service
		// Layout 1 has one table for all flows. Its UDP flows may last.
		proven := held && (e.protocol != protocols[pando.TCP] || e.flow.Flags&flowEstablished != 0)
		return t.take(e, proven, orderCopied)
	})
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// adopt makes the slabs of an old layout slabs of this one.
func (t *tables) adopt(from string) error {
	old, err := ebpf.LoadPinnedMap(filepath.Join(from, "slabs"), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer old.Close()
	former, err := openTables(old, t.spec)
	if err != nil {
		return err
	}
	defer former.Close()
	for n, s := range former.slabs {
		if s == nil {
			continue
		}
		if err := t.outer.Put(uint32(n), s.chunks); err != nil {
			return err
		}
	}
	return nil
}

// convert turns the tables of layout 1 into tables of this layout, with the same shares. They serve
// until the agent publishes.
func (t *tables) convert(from string, o *steerObjects) error {
	old, err := ebpf.LoadPinnedMap(filepath.Join(from, "tables"), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer old.Close()
	for n := range old.MaxEntries() / 2 {
		var s steerService
		if err := o.Services.Lookup(n, &s); err != nil {
			return err
		}
		active := s.Active & 1
		now := steerService{}
		if s.Endpoints[active] != 0 {
			table := make([]byte, old.ValueSize())
			if err := old.Lookup(2*n+active, &table); err != nil {
				return err
			}
			owners := ownersOf(table)
			buckets := resample(owners, bucketsFor(distinct(owners), 0))
			if now.Places[0], err = t.take(len(buckets)); err != nil {
				return err
			}
			now.Endpoints[0] = 1
			if err := t.write(now.Places[0], buckets, nil); err != nil {
				return err
			}
		}
		if s != now {
			if err := o.Services.Put(n, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// slots1 is the number of buckets of a table of layout 1. The rest of its value is padding.
const slots1 = 16381

func ownersOf(table []byte) []uint16 {
	owners := make([]uint16, min(slots1, len(table)/2))
	for n := range owners {
		owners[n] = binary.NativeEndian.Uint16(table[2*n:])
	}
	return owners
}

func distinct(owners []uint16) int {
	seen := map[uint16]bool{}
	for _, o := range owners {
		seen[o] = true
	}
	return len(seen)
}

// resample returns a table of another size with the same shares.
func resample(owners []uint16, size int) []uint16 {
	out := make([]uint16, size)
	for n := range out {
		out[n] = owners[n*len(owners)/size]
	}
	return out
}
