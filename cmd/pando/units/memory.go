package units

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"pando.run/pando/function"
)

// The layout of the group's memory is defined by function/group/src/shared.rs. This
// package reads only its first pages.
const (
	pageBytes   = 4096
	ringBytes   = 1 << 17
	pagesBytes  = pageBytes * (1 + function.Units)
	usesBytes   = 8 * (1 << 16) * 4 // last use of each leasable number, per function of a chain
	memoryBytes = pagesBytes + function.Units*function.Units*ringBytes + usesBytes
	reportWord  = 16
)

// memory is the memory that the units of a group share, with an eventfd per unit to wake it.
type memory struct {
	file  *os.File
	bells []*os.File
	pages []byte
}

func newMemory(name string) (*memory, error) {
	fd, err := unix.MemfdCreate("pando-group-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make the group's memory: %w", err)
	}
	m := &memory{file: os.NewFile(uintptr(fd), "memory")}
	if err := m.file.Truncate(memoryBytes); err != nil {
		m.close()
		return nil, fmt.Errorf("make the group's memory: %w", err)
	}
	if m.pages, err = unix.Mmap(fd, 0, pagesBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		m.close()
		return nil, fmt.Errorf("map the group's memory: %w", err)
	}
	for range function.Units {
		bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			m.close()
			return nil, fmt.Errorf("make an eventfd: %w", err)
		}
		m.bells = append(m.bells, os.NewFile(uintptr(bell), "bell"))
	}
	return m, nil
}

func (m *memory) close() {
	for _, f := range append(m.bells, m.file) {
		f.Close()
	}
	if m.pages != nil {
		_ = unix.Munmap(m.pages) // an error changes nothing
	}
}

func (m *memory) word(page, n int) *uint64 {
	return (*uint64)(unsafe.Pointer(&m.pages[page*pageBytes+8*n]))
}

// setAlive publishes the set of live units. If a unit has gone, it wakes all others, because flows
// may wait for an answer from that unit.
func (m *memory) setAlive(alive uint64) {
	before := atomic.SwapUint64(m.word(0, 0), alive)
	if before&^alive == 0 {
		return
	}
	one := [8]byte{1}
	for id, bell := range m.bells {
		if alive>>id&1 == 1 {
			_, _ = bell.Write(one[:]) // fails only if the unit is being woken already
		}
	}
}

// report is the last report of a unit.
type report struct {
	nowNS, finishNS, waiting, packets, bytes, left uint64
}

func (m *memory) report(id int) report {
	at := func(n int) uint64 { return atomic.LoadUint64(m.word(1+id, reportWord+n)) }
	return report{at(0), at(1), at(2), at(3), at(4), at(5)}
}

func (m *memory) clear(id int) {
	for n := range 6 {
		atomic.StoreUint64(m.word(1+id, reportWord+n), 0)
	}
}
