// Package cgroup limits and counts sandboxes by the kernel's control groups, v1 (or hybrid) and v2.
// It starts nothing and moves no process: the caller starts each process inside its group
// (pando.CgroupEntry).
//
// The files are few and fixed, so they are written directly. The usual library (containerd/cgroups)
// sets limits when it makes a group, but groups here are made ahead of need. It also adds processes
// by their id after their start. It supports neither v1's tasks of a single thread nor v2's clone
// into a group, which keep a shim out of its program's limits.
package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Root is the usual mount point of the hierarchies.
const Root = "/sys/fs/cgroup"

var (
	_ pando.Cgroups = Hierarchies{}
	_ pando.Cgroup  = (*Group)(nil)
)

// Hierarchies are the machine's: one of v2, or the v1 hierarchies that limit or count.
type Hierarchies struct {
	root string
	v2   bool
	v1   []string // mounted controllers
	// devices reports that v1 has the hierarchy of devices.
	devices bool
}

// controllers are those of v1 that limit or count.
var controllers = []string{"cpu", "cpuacct", "memory", "pids"}

// Open finds the hierarchies mounted below root.
func Open(root string) (Hierarchies, error) {
	h := Hierarchies{root: root}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		h.v2 = true
		return h, nil
	}
	for _, c := range controllers {
		// A missing controller is an error only for a spec that wants its limit.
		if _, err := os.Stat(filepath.Join(root, c, "tasks")); err == nil {
			h.v1 = append(h.v1, c)
		}
	}
	_, err := os.Stat(filepath.Join(root, devicesController, "tasks"))
	h.devices = err == nil
	if len(h.v1) == 0 {
		return h, fmt.Errorf("%w: no control groups are mounted at %s; mount cgroup2 there",
			pando.ErrNotFound, root)
	}
	return h, nil
}

// Group is the cgroup of one sandbox, in each hierarchy.
type Group struct {
	root string
	name string            // below the root of each hierarchy
	v2   string            // its folder in v2
	v1   map[string]string // controller -> folder
	// devices is its folder in v1's hierarchy of devices, or "".
	devices string
	cpuset  string // its folder in v1's hierarchy of processors, or ""
	strain  strain
}

// Make implements pando.Cgroups.
func (h Hierarchies) Make(name string) (pando.Cgroup, error) {
	g := &Group{root: h.root, name: name, v1: map[string]string{}}
	if h.v2 {
		g.v2 = filepath.Join(h.root, name)
	}
	for _, c := range h.v1 {
		g.v1[c] = filepath.Join(h.root, c, name)
	}
	if h.devices {
		g.devices = filepath.Join(h.root, devicesController, name)
	}
	if dir := filepath.Join(h.root, cpusetController, name); !h.v2 && isFolder(dir) {
		g.cpuset = dir // of a group that a former agent made
	}
	for _, dir := range g.all() {
		if err := makeFolder(dir); err != nil {
			return nil, errors.Join(fmt.Errorf("make a cgroup: %w", err), g.Remove())
		}
	}
	if h.v2 {
		h.enable(name)
	}
	return g, nil
}

// enable hands the controllers down to a v2 group. A missing one is an error only for a spec that
// wants its limit.
func (h Hierarchies) enable(name string) {
	dir := h.root
	for part := range strings.SplitSeq(name, "/") {
		for _, c := range []string{"+cpu", "+memory", "+pids"} {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(c), 0)
		}
		dir = filepath.Join(dir, part)
	}
}

// Roots returns the folders of the hierarchies.
func (h Hierarchies) Roots() []string {
	if h.v2 {
		return []string{h.root}
	}
	var out []string
	for _, c := range h.v1 {
		out = append(out, filepath.Join(h.root, c))
	}
	if h.devices {
		out = append(out, filepath.Join(h.root, devicesController))
	}
	if dir := filepath.Join(h.root, cpusetController); isFolder(dir) {
		out = append(out, dir)
	}
	return out
}

// Prune implements pando.Cgroups.
func (h Hierarchies) Prune(name string) {
	for _, root := range h.Roots() {
		for dir := name; dir != "."; dir = filepath.Dir(dir) {
			if err := os.Remove(filepath.Join(root, dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				break // still in use
			}
		}
	}
}

func (g *Group) folders() []string {
	if g.v2 != "" {
		return []string{g.v2}
	}
	var out []string
	for _, dir := range g.v1 {
		out = append(out, dir)
	}
	return out
}

// all returns every folder of the group, also those of its devices and processors.
func (g *Group) all() []string {
	return append(g.folders(), g.apart()...)
}

// apart returns the folders of the group in hierarchies of v1 that neither limit nor count.
func (g *Group) apart() (out []string) {
	for _, dir := range []string{g.devices, g.cpuset} {
		if dir != "" {
			out = append(out, dir)
		}
	}
	return out
}

// Entry implements pando.Cgroup.
func (g *Group) Entry() pando.CgroupEntry {
	e := pando.CgroupEntry{}
	if g.v2 != "" {
		e.Folder = strings.TrimPrefix(g.v2, g.root)
		return e
	}
	for _, dir := range g.v1 {
		e.Tasks = append(e.Tasks, strings.TrimPrefix(filepath.Join(dir, "tasks"), g.root))
	}
	for _, dir := range g.apart() {
		e.Tasks = append(e.Tasks, strings.TrimPrefix(filepath.Join(dir, "tasks"), g.root))
	}
	return e
}

// Processes implements pando.Cgroup.
func (g *Group) Processes() ([]int, error) {
	b, err := os.ReadFile(filepath.Join(g.folders()[0], "cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("list the processes of a cgroup: %w", err)
	}
	var out []int
	for _, word := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("list the processes of a cgroup: %w", err)
		}
		out = append(out, pid)
	}
	return out, nil
}

// A program that has spent its quota waits for the next period. The kernel's default of 100 ms
// stops a program with a quarter of a processor for 75 ms at a time, amid its requests. The shorter
// period stops it for 7.5 ms. A smaller share needs the long one, because of the least quota.
const (
	cpuPeriodMicroseconds     = 10_000
	cpuPeriodLongMicroseconds = 100_000
	cpuQuotaMicrosecondsMin   = 1_000 // the kernel's minimum
)

// bandwidth returns the processor time of each period: a quota of 0 is no limit.
func bandwidth(cpus float64) (quota, period int64) {
	if cpus <= 0 {
		return 0, cpuPeriodLongMicroseconds
	}
	if quota = int64(cpus * cpuPeriodMicroseconds); quota >= cpuQuotaMicrosecondsMin {
		return quota, cpuPeriodMicroseconds
	}
	quota = int64(cpus * cpuPeriodLongMicroseconds)
	return max(quota, cpuQuotaMicrosecondsMin), cpuPeriodLongMicroseconds
}

// Limit implements pando.Cgroup.
func (g *Group) Limit(r pando.Resources) error {
	if r.CPUSet != "" {
		folder, err := chooseProcessors(g.root, g.name, g.v2 != "", r.CPUSet)
		if g.cpuset = folder; err != nil {
			return err
		}
	}
	quota, period := bandwidth(r.CPUs)
	pids := orText(cmp.Or(r.PIDs, pando.PIDsDefault), "max")
	settings := []struct {
		controller, v1, v2, value1, value2 string
		wanted                             bool
	}{
		{"cpu", "cpu.cfs_quota_us", "cpu.max", orText(quota, "-1"),
			orText(quota, "max") + " " + strconv.FormatInt(period, 10), r.CPUs > 0},
		{"cpu", "cpu.cfs_period_us", "", strconv.FormatInt(period, 10), "", r.CPUs > 0},
		{"memory", "memory.limit_in_bytes", "memory.max", orText(r.MemoryBytes, "-1"),
			orText(r.MemoryBytes, "max"), r.MemoryBytes > 0},
		{"pids", "pids.max", "pids.max", pids, pids, r.PIDs > 0},
	}
	for _, s := range settings {
		err := g.write(s.controller, s.v1, s.v2, s.value1, s.value2)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: this machine has no %s controller here; `pando doctor` explains it",
				pando.ErrNotFound, s.controller)
		}
		if err != nil && s.wanted {
			return fmt.Errorf("limit the %s of an instance: %w", s.controller, err)
		}
	}
	// Swap would soften the limit. Without swap accounting, the file does not exist.
	if r.MemoryBytes > 0 {
		_ = g.write("memory", "memory.memsw.limit_in_bytes", "memory.swap.max",
			orText(r.MemoryBytes, "-1"), "0")
	}
	return nil
}

// write writes one setting: to a file of v1, or to one of v2, which may have none for it.
func (g *Group) write(controller, v1, v2, value1, value2 string) error {
	if g.v2 != "" {
		if v2 == "" {
			return nil
		}
		return put(filepath.Join(g.v2, v2), value2)
	}
	dir, ok := g.v1[controller]
	if !ok {
		return fs.ErrNotExist
	}
	return put(filepath.Join(dir, v1), value1)
}

func orText(n int64, none string) string {
	if n <= 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

func (g *Group) file(controller, v1, v2 string) string {
	if g.v2 != "" {
		return filepath.Join(g.v2, v2)
	}
	return filepath.Join(g.v1[controller], v1)
}

// number reads a file with one number. It returns pando.Uncounted for a file that is missing or has
// no number.
func number(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return pando.Uncounted
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return pando.Uncounted
	}
	return n
}

// field reads the value of name from a file of lines "name value". It returns pando.Uncounted if the
// file has none.
func field(path, name string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return pando.Uncounted
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); err == nil {
				return n
			}
		}
	}
	return pando.Uncounted
}

// Usage implements pando.Cgroup.
func (g *Group) Usage() pando.Usage {
	u := pando.Usage{
		MemoryBytes: number(g.file("memory", "memory.usage_in_bytes", "memory.current")),
		PIDs:        number(g.file("pids", "pids.current", "pids.current")),
	}
	if g.v2 != "" {
		u.CPU = time.Duration(field(filepath.Join(g.v2, "cpu.stat"), "usage_usec"))
		if u.CPU != pando.Uncounted {
			u.CPU *= time.Microsecond
		}
	} else {
		u.CPU = time.Duration(number(g.file("cpuacct", "cpuacct.usage", "")))
	}
	return u
}

// OOMKilled implements pando.Cgroup.
func (g *Group) OOMKilled() bool {
	return field(g.file("memory", "memory.oom_control", "memory.events"), "oom_kill") > 0
}

// removeTries bounds the attempts to remove a group, 1 ms apart: its last process may still be
// leaving it.
const removeTries = 500

// Remove implements pando.Cgroup.
func (g *Group) Remove() error {
	g.strain.close()
	var err error
	for range removeTries {
		if err = g.removeOnce(); !errors.Is(err, unix.EBUSY) {
			break
		}
		pause()
	}
	if err != nil {
		return fmt.Errorf("remove a cgroup: %w", err)
	}
	return nil
}

func (g *Group) removeOnce() error {
	var errs []error
	for _, dir := range g.all() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
