package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

const (
	chunkBuckets = 128 // bpf/pando.h
	slabsMax     = 64  // bpf/pando.h
)

// chunk is struct chunk of bpf/pando.h.
type chunk struct{ Endpoint [chunkBuckets]uint16 }

// tables has the slabs with the tables of all services. A slab of 1 MiB is made when no other has
// room, so a host with few instances has one. The lock of the driver guards it.
type tables struct {
	outer *ebpf.Map
	spec  *ebpf.MapSpec // of one slab
	slabs [slabsMax]*slab
}

type slab struct {
	chunks *ebpf.Map
	blocks *slabBlocks
}

// openTables finds the slabs of a former agent.
func openTables(outer *ebpf.Map, spec *ebpf.MapSpec) (*tables, error) {
	t := &tables{outer: outer, spec: spec}
	for n := range uint32(slabsMax) {
		var m *ebpf.Map
		err := outer.Lookup(n, &m)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("find slab %d: %w", n, err), t.Close())
		}
		t.slabs[n] = &slab{m, newSlabBlocks()}
	}
	return t, nil
}

// Close closes the slabs. The programs keep them.
func (t *tables) Close() (err error) {
	for _, s := range t.slabs {
		if s != nil {
			err = errors.Join(err, s.chunks.Close())
		}
	}
	return err
}

// chunksOf returns the number of a table's chunks; 0: there is no table.
func chunksOf(p steerPlace) int {
	if p.Mask == 0 {
		return 0
	}
	return (int(p.Mask) + 1) / chunkBuckets
}

// claim takes the place of a table of a former agent.
func (t *tables) claim(p steerPlace) error {
	if p.Mask == 0 {
		return nil
	}
	n := p.Chunk / slabChunks
	if n >= slabsMax || t.slabs[n] == nil {
		return fmt.Errorf("%w: a table is in slab %d, which is not there", pando.ErrInvalid, n)
	}
	return t.slabs[n].blocks.claim(int(p.Chunk%slabChunks), chunksOf(p))
}

// take finds a place for a table. The number of buckets is a power of two.
func (t *tables) take(buckets int) (steerPlace, error) {
	place := func(n, first int) steerPlace {
		return steerPlace{Chunk: uint32(n*slabChunks + first), Mask: uint32(buckets - 1)}
	}
	unused := -1
	for n, s := range t.slabs {
		if s == nil {
			if unused < 0 {
				unused = n
			}
			continue
		}
		if first, ok := s.blocks.take(buckets / chunkBuckets); ok {
			return place(n, first), nil
		}
	}
	if unused < 0 {
		return steerPlace{}, fmt.Errorf("%w: the steering tables of this host fill %d MiB",
			pando.ErrTooLarge, slabsMax)
	}
	s, err := t.add(uint32(unused))
	if err != nil {
		return steerPlace{}, err
	}
	first, ok := s.blocks.take(buckets / chunkBuckets)
	if !ok {
		return steerPlace{}, fmt.Errorf("%w: a table of %d buckets", pando.ErrTooLarge, buckets)
	}
	return place(unused, first), nil
}

// add makes a slab. The kernel waits for an RCU grace period (7 to 16 ms).
func (t *tables) add(n uint32) (*slab, error) {
	m, err := ebpf.NewMap(t.spec)
	if err == nil {
		err = t.outer.Put(n, m)
	}
	if err != nil {
		if m != nil {
			_ = m.Close()
		}
		return nil, fmt.Errorf("make slab %d of the steering tables: %w", n, err)
	}
	t.slabs[n] = &slab{m, newSlabBlocks()}
	return t.slabs[n], nil
}

// give returns the place of a table.
func (t *tables) give(p steerPlace) {
	if n := p.Chunk / slabChunks; p.Mask != 0 && n < slabsMax && t.slabs[n] != nil {
		t.slabs[n].blocks.give(int(p.Chunk%slabChunks), chunksOf(p))
	}
}

// clear removes the record of a service and gives its places back.
func (t *tables) clear(services *ebpf.Map, n uint32) error {
	var was steerService
	if err := services.Lookup(n, &was); err != nil {
		return err
	}
	if err := services.Put(n, steerService{}); err != nil {
		return err
	}
	t.give(was.Places[0])
	t.give(was.Places[1])
	return nil
}

// trim removes empty slabs but the first.
func (t *tables) trim() (err error) {
	for n := 1; n < slabsMax; n++ {
		s := t.slabs[n]
		if s == nil || !s.blocks.isEmpty() {
			continue
		}
		if derr := t.outer.Delete(uint32(n)); derr != nil {
			err = errors.Join(err, fmt.Errorf("remove slab %d: %w", n, derr))
			continue
		}
		err = errors.Join(err, s.chunks.Close())
		t.slabs[n] = nil
	}
	return err
}

// fill writes a table to its former place, or to another one if it has another size.
func (t *tables) fill(
	was steerPlace, buckets []uint16, slots []uint32,
) (steerPlace, error) {
	if len(buckets) == 0 {
		return steerPlace{}, nil
	}
	place := was
	if int(was.Mask)+1 != len(buckets) {
		var err error
		if place, err = t.take(len(buckets)); err != nil {
			return place, err
		}
	}
	err := t.write(place, buckets, slots)
	if err != nil && place != was {
		t.give(place)
	}
	return place, err
}

// write fills a table with the slots of endpoints: bucket n goes to slots[buckets[n]], or to
// buckets[n] without slots.
func (t *tables) write(p steerPlace, buckets []uint16, slots []uint32) error {
	numbers := make([]uint32, chunksOf(p))
	chunks := make([]chunk, len(numbers))
	for n := range numbers {
		numbers[n] = p.Chunk%slabChunks + uint32(n)
		for at := range chunkBuckets {
			b := buckets[n*chunkBuckets+at]
			if slots != nil {
				b = uint16(slots[b])
			}
			chunks[n].Endpoint[at] = b
		}
	}
	_, err := t.slabs[p.Chunk/slabChunks].chunks.BatchUpdate(numbers, chunks, nil)
	return err
}
