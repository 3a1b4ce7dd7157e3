package cgroup

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
)

// limitsEvery is how many readings share one look at the limits and at the memory. They change
// rarely, and each costs an open and a close.
const limitsEvery = 10

// strainMemoryMax is the value from which a limit of v1 means none.
const strainMemoryMax = 1 << 60

// strain keeps the files of the processor open: a meter reads them ten times a second.
type strain struct {
	mu    sync.Mutex
	files map[string]*os.File
	reads int
	last  pando.Strain
	buf   [1024]byte
}

// Strain implements pando.Cgroup.
func (g *Group) Strain() pando.Strain {
	s := &g.strain
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reads%limitsEvery == 0 {
		s.last.Memory = max(0, number(g.file("memory", "memory.usage_in_bytes", "memory.current")))
		s.last.CPUs, s.last.MemoryMax = g.limits()
	}
	s.reads++
	if g.v2 != "" {
		stat := s.read(g.file("cpu", "cpu.stat", "cpu.stat"))
		s.last.CPU = time.Duration(fieldOf(stat, "usage_usec")) * time.Microsecond
		s.last.Throttled = time.Duration(fieldOf(stat, "throttled_usec")) * time.Microsecond
		s.last.Stalled = stalled(s.read(g.file("memory", "", "memory.pressure")))
		return s.last
	}
	if s.last.CPUs > 0 { // nothing throttles a group without a limit
		stat := s.read(g.file("cpu", "cpu.stat", ""))
		s.last.Throttled = time.Duration(fieldOf(stat, "throttled_time"))
	}
	total := s.read(g.file("cpuacct", "cpuacct.usage", ""))
	n, _ := strconv.ParseInt(string(bytes.TrimSpace(total)), 10, 64)
	s.last.CPU = time.Duration(n)
	return s.last
}

// stalled returns the total of the line "some" of a file of pressure stall information.
func stalled(text []byte) time.Duration {
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("some ")) {
			continue
		}
		_, total, _ := bytes.Cut(line, []byte("total="))
		n, _ := strconv.ParseInt(string(bytes.TrimSpace(total)), 10, 64)
		return time.Duration(n) * time.Microsecond
	}
	return 0
}

// limits returns the limits in force: 0 if there is none.
func (g *Group) limits() (cpus float64, memory int64) {
	if g.v2 != "" {
		text, _ := os.ReadFile(filepath.Join(g.v2, "cpu.max"))
		words := strings.Fields(string(text))
		if len(words) == 2 {
			quota, _ := strconv.ParseFloat(words[0], 64) // "max" is 0
			period, _ := strconv.ParseFloat(words[1], 64)
			cpus = positive(quota, period)
		}
		return cpus, max(0, number(filepath.Join(g.v2, "memory.max"))) // "max" is no number
	}
	cpus = positive(float64(number(g.file("cpu", "cpu.cfs_quota_us", ""))),
		float64(number(g.file("cpu", "cpu.cfs_period_us", ""))))
	if memory = max(0, number(g.file("memory", "memory.limit_in_bytes", ""))); memory >= strainMemoryMax {
		memory = 0
	}
	return cpus, memory
}

func positive(part, whole float64) float64 {
	if part <= 0 || whole <= 0 {
		return 0
	}
	return part / whole
}

// read reads a file that stays open. A group that is gone gives nothing.
func (s *strain) read(path string) []byte {
	f := s.files[path]
	if f == nil {
		var err error
		if f, err = os.Open(path); err != nil {
			return nil
		}
		if s.files == nil {
			s.files = map[string]*os.File{}
		}
		s.files[path] = f
	}
	n, err := f.ReadAt(s.buf[:], 0)
	if err != nil && err != io.EOF {
		return nil
	}
	return s.buf[:n]
}

// close closes the files.
func (s *strain) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, f := range s.files {
		f.Close()
		delete(s.files, path)
	}
}

// fieldOf returns the value of name in lines "name value".
func fieldOf(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
			return n
		}
	}
	return 0
}
