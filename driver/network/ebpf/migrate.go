package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"pando.run/pando"
)

// Pinned tables of another layout are not changed in place. New ones are made beside them and
// filled. Then the programs are replaced one by one. Then the flows that the old programs added
// meanwhile are copied, and the old tables are removed.
//
//	layout-1            layout-1                 layout-1                 layout-2
//	                    layout-2-new (filled)    layout-2 (renamed)
//
// If the agent is killed before the rename, its successor begins again. If it is killed later, its
// successor replaces the programs and copies the flows again.
//
// Between the fill and the replacement, new flows are in the old tables only, so their later
// packets find no entry. While the variable migrating is set, the programs drop such a packet. Its
// sender repeats it, and finds the flow once the flows are copied.

const unfinished = "-new" // a bpffs allows no dots

// pins is the folder with the pinned tables of one host: a folder of a bpffs.
type pins string

// tables returns the folder of the tables of a layout.
func (p pins) tables(n int) string {
	return filepath.Join(string(p), "layout-"+strconv.Itoa(n))
}

// layouts returns the layouts with pinned tables.
func (p pins) layouts() (out []int, err error) {
	entries, err := os.ReadDir(string(p))
	if err != nil {
		return nil, fmt.Errorf("look for pinned tables: %w", err)
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(strings.TrimPrefix(e.Name(), "layout-")); err == nil {
			out = append(out, n)
		}
	}
	return out, nil
}

// prepared has the folders in which an Open finds or makes the tables.
type prepared struct {
	dir   string
	from  string // older tables to fill those in dir from; "": none
	fresh bool   // dir has no connection table yet
}

// prepare makes the folder of the tables, and looks for older tables.
func (p pins) prepare() (out prepared, err error) {
	dir := p.tables(layout)
	layouts, err := p.layouts()
	if err != nil {
		return out, err
	}
	found, old := false, 0
	for _, n := range layouts {
		switch {
		case n > layout:
			return out, fmt.Errorf("%w: the tables in %s have layout %d, this build knows up to %d: "+
				"upgrade pando on this host, or `pando down --purge` to begin anew",
				pando.ErrInvalid, p, n, layout)
		case n == layout:
			found = true
		default:
			old = max(old, n)
		}
	}
	if old > 0 {
		out.from = p.tables(old)
	}
	if found || out.from == "" {
		_, err := os.Stat(filepath.Join(dir, "flows"))
		out.dir, out.fresh = dir, errors.Is(err, os.ErrNotExist)
		return out, os.MkdirAll(dir, 0o700)
	}
	if err := os.RemoveAll(dir + unfinished); err != nil {
		return out, err
	}
	out.dir = dir + unfinished
	return out, os.Mkdir(out.dir, 0o700)
}

// ownWay names the tables that are not copied entry by entry.
var ownWay = []string{"flows", "flows6", "opening", "opening6", "guarded", "guarded6", "held",
	"tenant_guarded", "slabs"}

// fill copies every table, with the fields that the old one has. The programs do not use the new
// tables yet.
func (p prepared) fill(spec *ebpf.CollectionSpec, o *steerObjects, flows flowTable) error {
	for name, s := range spec.Maps {
		if name[0] == '.' || slices.Contains(ownWay, name) {
			continue
		}
		old, now := filepath.Join(p.from, name), filepath.Join(p.dir, name)
		if err := copyTable(s, old, now); err != nil {
			return fmt.Errorf("bring the table %s over from %s: %w", name, p.from, err)
		}
	}
	t, err := openTables(o.Slabs, spec.Maps["slabs"].InnerMap)
	if err == nil {
		err = errors.Join(t.adopt(p.from), t.convert(p.from, o), t.Close())
	}
	if err == nil {
		err = p.copyFlows(flows)
	}
	if err != nil {
		return fmt.Errorf("bring the steering over from %s: %w", p.from, err)
	}
	return os.Rename(p.dir, strings.TrimSuffix(p.dir, unfinished))
}

// finish copies the flows that began while the programs were replaced, then removes the old tables.
// Then it clears the variable migrating.
func (p prepared) finish(flows flowTable, migrating *ebpf.Variable) error {
	if err := p.copyFlows(flows); err != nil {
		return fmt.Errorf("bring the last flows over from %s: %w", p.from, err)
	}
	if err := migrating.Set(uint32(0)); err != nil {
		return fmt.Errorf("mark the tables as complete: %w", err)
	}
	return os.RemoveAll(p.from)
}

// copyTable copies a pinned map into one of the same name and another layout.
func copyTable(spec *ebpf.MapSpec, from, to string) error {
	old, err := ebpf.LoadPinnedMap(from, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the old layout had no such table
	}
	if err != nil {
		return err
	}
	defer old.Close()
	m, err := ebpf.LoadPinnedMap(to, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	if old.Type() == ebpf.SkStorage {
		return nil // the kernel lists no sockets: those of now have the instance as their peer
	}
	key, value, err := conversions(old, spec)
	if err != nil {
		return err
	}
	put := func(k, v any) error { return m.Update(k, v, ebpf.UpdateAny) }
	if spec.Type == ebpf.PerCPUArray {
		return eachPerCPU(old, value, put)
	}
	return eachRaw(old, func(k, v []byte) error {
		if old.Type() == ebpf.Array && isZero(v) {
			return nil
		}
		return put(key.apply(k), value.apply(v))
	})
}

// conversions returns the conversions of a pinned map's keys and values to this build's types.
func conversions(old *ebpf.Map, spec *ebpf.MapSpec) (key, value conversion, err error) {
	handle, err := old.Handle()
	if err != nil {
		return key, value, err
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return key, value, err
	}
	if key, err = conversionOf(types, spec.Key); err != nil {
		return key, value, err
	}
	value, err = conversionOf(types, spec.Value)
	return key, value, err
}

func isZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// eachRaw reads a map as bytes, in batches, so that concurrent changes do no harm.
func eachRaw(m *ebpf.Map, f func(key, value []byte) error) error {
	rows := func(size uint32) reflect.Value {
		n := readAtOnce
		if m.ValueSize() > 1<<12 {
			n = 64
		}
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]())),
			n, n)
	}
	keys, values := rows(m.KeySize()), rows(m.ValueSize())
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys.Interface(), values.Interface(), nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			if ferr := f(keys.Index(i).Slice(0, int(m.KeySize())).Bytes(),
				values.Index(i).Slice(0, int(m.ValueSize())).Bytes()); ferr != nil {
				return ferr
			}
		}
		if err != nil {
			return nil
		}
	}
}

// eachPerCPU reads an array with a value per CPU. It skips entries that are zero on all CPUs.
func eachPerCPU(m *ebpf.Map, c conversion, put func(k, v any) error) error {
	for n := range m.MaxEntries() {
		perCPU := reflect.New(reflect.SliceOf(reflect.ArrayOf(int(m.ValueSize()),
			reflect.TypeFor[byte]())))
		if err := m.Lookup(n, perCPU.Interface()); err != nil {
			return err
		}
		out := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(c.size, reflect.TypeFor[byte]())),
			perCPU.Elem().Len(), perCPU.Elem().Len())
		used := false
		for i := range out.Len() {
			v := perCPU.Elem().Index(i).Slice(0, int(m.ValueSize())).Bytes()
			used = used || !isZero(v)
			reflect.Copy(out.Index(i), reflect.ValueOf(c.apply(v)))
		}
		if used {
			if err := put(n, out.Interface()); err != nil {
				return err
			}
		}
	}
	return nil
}

// conversion converts a value of the old layout to the new one, field by field.
type conversion struct {
	size  int
	moves []move
}

type move struct{ from, to, size int }

func (c conversion) apply(old []byte) []byte {
	out := make([]byte, c.size)
	for _, m := range c.moves {
		copy(out[m.to:m.to+m.size], old[m.from:m.from+m.size])
	}
	return out
}

// conversionOf compares a type with the type of the same name in the old tables' BTF. A new field
// becomes zero and a removed field is dropped. A field with another size is an error.
func conversionOf(old *btf.Spec, t btf.Type) (conversion, error) {
	size, err := btf.Sizeof(t)
	if err != nil {
		return conversion{}, err
	}
	now, ok := btf.UnderlyingType(t).(*btf.Struct)
	if !ok {
		return conversion{size, []move{{0, 0, size}}}, nil
	}
	var was *btf.Struct
	if err := old.TypeByName(now.Name, &was); err != nil {
		return conversion{}, fmt.Errorf("struct %s: %w", now.Name, err)
	}
	c := conversion{size: size}
	for _, field := range now.Members {
		for _, before := range was.Members {
			if before.Name != field.Name {
				continue
			}
			a, aerr := btf.Sizeof(before.Type)
			b, berr := btf.Sizeof(field.Type)
			if err := errors.Join(aerr, berr); err != nil {
				return c, err
			}
			if a != b {
				return c, fmt.Errorf("%w: %s.%s had %d bytes and has %d", pando.ErrInvalid, now.Name,
					field.Name, a, b)
			}
			c.moves = append(c.moves, move{int(before.Offset.Bytes()), int(field.Offset.Bytes()), a})
		}
	}
	return c, nil
}
