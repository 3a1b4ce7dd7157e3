package unit

import (
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// The layout of the group's memory, in words of 8 bytes. bpf/group.h defines it. This package maps
// only the pages; the rings and the numbers belong to the units.
const (
	pageWords   = 512
	memoryBytes = 539234304
	aliveWord   = 0  // of the first page
	reportWord  = 16 // of a unit's page: the first word of its report
	reportNow   = reportWord
	reportEnd   = reportWord + 1
	reportWaits = reportWord + 2
	reportWork  = reportWord + 6
	reportWords = 7
	pagesBytes  = 8 * pageWords * (1 + pando.UnitsMax)
)

// Memory is the memory that the units of a group share, with an eventfd per unit to wake it.
type Memory struct {
	file  *os.File
	bells []*os.File
	pages []byte
}

var _ pando.UnitMemory = (*Memory)(nil)

func newMemory(name string) (*Memory, error) {
	fd, err := unix.MemfdCreate("pando-group-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make the group's memory: %w", err)
	}
	m := &Memory{file: os.NewFile(uintptr(fd), "memory")}
	if err := m.file.Truncate(memoryBytes); err != nil {
		m.close()
		return nil, fmt.Errorf("make the group's memory: %w", err)
	}
	access := unix.PROT_READ | unix.PROT_WRITE
	if m.pages, err = unix.Mmap(fd, 0, pagesBytes, access, unix.MAP_SHARED); err != nil {
		m.close()
		return nil, fmt.Errorf("map the group's memory: %w", err)
	}
	for range pando.UnitsMax {
		bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			m.close()
			return nil, fmt.Errorf("make an eventfd: %w", err)
		}
		m.bells = append(m.bells, os.NewFile(uintptr(bell), "bell"))
	}
	return m, nil
}

func (m *Memory) close() {
	for _, f := range append(m.bells, m.file) {
		f.Close()
	}
	if m.pages != nil {
		_ = unix.Munmap(m.pages) // an error changes nothing
	}
}

func (m *Memory) word(page, n int) *uint64 {
	return (*uint64)(unsafe.Pointer(&m.pages[8*(page*pageWords+n)]))
}

// SetAlive implements pando.UnitMemory. It wakes the other units if a unit has gone, because flows
// may wait for an answer from that unit.
func (m *Memory) SetAlive(alive uint64) {
	before := atomic.SwapUint64(m.word(0, aliveWord), alive)
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

// Loads implements pando.UnitMemory. Units report times of the kernel's monotonic clock.
func (m *Memory) Loads(units uint64) (loads [pando.UnitsMax]pando.UnitLoad, err error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return loads, fmt.Errorf("read the clock of the units' reports: %w", err)
	}
	for set := units; set != 0; set &= set - 1 {
		id := bits.TrailingZeros64(set)
		at := func(n int) int64 { return int64(atomic.LoadUint64(m.word(1+id, n))) }
		loads[id] = pando.UnitLoad{
			Age:     time.Duration(now.Nano() - at(reportNow)),
			Backlog: time.Duration(max(0, at(reportEnd)-now.Nano())),
			Waiting: uint64(at(reportWaits)),
			Worked:  time.Duration(at(reportWork)),
		}
	}
	return loads, nil
}

// Clear implements pando.UnitMemory.
func (m *Memory) Clear(id int) {
	for n := range reportWords {
		atomic.StoreUint64(m.word(1+id, reportWord+n), 0)
	}
}
