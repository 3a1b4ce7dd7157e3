// Package cgroup bounds and measures one sandbox. It speaks to the kernel's files directly, in a v1 or hybrid hierarchy as
// well as in v2, because the few files that it needs are simpler than a library for all of them. It starts and ends no process.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pando.run/pando"
)

const root = "/sys/fs/cgroup"

// controllers that Pando uses, by the names of v1.
var controllers = []string{"cpu", "cpuacct", "memory", "pids"}

// Group is the control group of one sandbox, in every hierarchy that there is.
type Group struct {
	unified bool
	dirs    map[string]string // controller -> folder; in v2 all of them are the same
}

// Open names a group, for example pando/host/7. It makes nothing.
func Open(name string) *Group {
	g := &Group{dirs: map[string]string{}}
	if available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		g.unified = true
		has := strings.Fields(string(available))
		g.dirs["cpuacct"] = filepath.Join(root, name) // cpu.stat is always there
		for _, c := range has {
			g.dirs[c] = filepath.Join(root, name)
		}
		return g
	}
	for _, c := range controllers {
		if _, err := os.Stat(filepath.Join(root, c, "tasks")); err == nil {
			g.dirs[c] = filepath.Join(root, c, name)
		}
	}
	return g
}

// Make makes the group's folders.
func (g *Group) Make() error {
	for _, dir := range g.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the control group %s: %w", dir, err)
		}
	}
	if g.unified {
		return g.delegate()
	}
	return nil
}

// delegate hands the controllers down from the root to the group, as v2 wants it.
func (g *Group) delegate() error {
	rel, err := filepath.Rel(root, g.dirs["cpuacct"])
	if err != nil {
		return err
	}
	dir := root
	for _, part := range strings.Split(rel, "/") {
		for _, c := range []string{"cpu", "memory", "pids"} {
			if g.dirs[c] == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
				delete(g.dirs, c) // an error only when a spec asks for its limit
			}
		}
		dir = filepath.Join(dir, part)
	}
	return nil
}

// Entrance opens what a process joins the group by: the tasks files of v1, or the one folder of v2.
func (g *Group) Entrance() (files []*os.File, unified bool, err error) {
	if g.unified {
		f, err := os.Open(g.dirs["cpuacct"])
		return []*os.File{f}, true, err
	}
	for _, c := range controllers {
		if g.dirs[c] == "" {
			continue
		}
		f, err := os.OpenFile(filepath.Join(g.dirs[c], "tasks"), os.O_WRONLY, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, false, fmt.Errorf("open the control group: %w", err)
		}
		files = append(files, f)
	}
	return files, false, nil
}

const periodMicros = 100_000

// Limit bounds the group. A controller that this machine lacks is an error only when its limit is asked for.
func (g *Group) Limit(r pando.Resources) error {
	quota := int64(math.Max(1000, r.CPUs*periodMicros))
	cpu, value := "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)
	memory, pids := "memory.limit_in_bytes", "pids.max"
	if g.unified {
		cpu, value, memory = "cpu.max", fmt.Sprintf("%d %d", quota, periodMicros), "memory.max"
	}
	for _, l := range []struct {
		asked                         bool
		controller, word, file, value string
	}{
		{r.CPUs > 0, "cpu", "cpus", cpu, value},
		{r.MemoryBytes > 0, "memory", "memory_bytes", memory, strconv.FormatInt(r.MemoryBytes, 10)},
		{r.PIDs > 0, "pids", "pids", pids, strconv.FormatInt(r.PIDs, 10)},
	} {
		if !l.asked {
			continue
		}
		dir := g.dirs[l.controller]
		if dir == "" {
			return fmt.Errorf("%w: resources.%s needs the %s controller of cgroups, which this machine does not offer; remove the limit or enable it",
				pando.ErrUnsupported, l.word, l.controller)
		}
		if err := os.WriteFile(filepath.Join(dir, l.file), []byte(l.value), 0); err != nil {
			return fmt.Errorf("set resources.%s to %s: %w", l.word, l.value, err)
		}
	}
	return nil
}

// Usage reads what the group has used; what is not accounted for here stays zero.
func (g *Group) Usage() (pando.Usage, error) {
	var u pando.Usage
	if _, err := os.Stat(g.dirs["cpuacct"]); err != nil {
		return u, fmt.Errorf("read the control group: %w", err)
	}
	u.PIDs = g.number("pids", "pids.current")
	if g.unified {
		u.CPU = time.Duration(g.field("cpuacct", "cpu.stat", "usage_usec")) * time.Microsecond
		u.MemoryBytes = g.number("memory", "memory.current")
		return u, nil
	}
	u.CPU = time.Duration(g.number("cpuacct", "cpuacct.usage"))
	u.MemoryBytes = g.number("memory", "memory.usage_in_bytes")
	return u, nil
}

// OOMKilled says whether the kernel has killed a process of the group for want of memory.
func (g *Group) OOMKilled() bool {
	if g.unified {
		return g.field("memory", "memory.events", "oom_kill") > 0
	}
	return g.field("memory", "memory.oom_control", "oom_kill") > 0
}

func (g *Group) number(controller, file string) int64 {
	b, err := os.ReadFile(filepath.Join(g.dirs[controller], file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

func (g *Group) field(controller, file, name string) int64 {
	b, err := os.ReadFile(filepath.Join(g.dirs[controller], file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// Remove removes the group. EBUSY means that the kernel still counts a process in it: try again.
func (g *Group) Remove() error {
	var failed error
	for _, dir := range g.dirs {
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = fmt.Errorf("remove the control group %s: %w", dir, err)
		}
	}
	return failed
}
