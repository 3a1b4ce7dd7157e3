package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
)

// cgroupRoot is where the hierarchies are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// cgroup is what limits and counts one sandbox, in each hierarchy of a v1 (or hybrid) machine or in the one of v2. The
// files are few and fixed, so they are written directly.
type cgroup struct{ dirs map[string]string } // controller -> folder; "" is v2

// makeCgroup makes the folders of one slot. They are made ahead of need: moving a process between cgroups costs
// milliseconds, writing a limit costs microseconds.
func makeCgroup(name string) (cgroup, error) {
	g := cgroup{dirs: map[string]string{}}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		dir := filepath.Join(cgroupRoot, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return g, fmt.Errorf("make a cgroup: %w", err)
		}
		for d := filepath.Dir(dir); len(d) >= len(cgroupRoot); d = filepath.Dir(d) {
			_ = os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0)
		}
		g.dirs[""] = dir
		return g, nil
	}
	for _, controller := range []string{"cpu", "cpuacct", "memory", "pids"} {
		if _, err := os.Stat(filepath.Join(cgroupRoot, controller, "tasks")); err != nil {
			continue // absent: an error only for a spec that wants its limit
		}
		dir := filepath.Join(cgroupRoot, controller, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return g, fmt.Errorf("make a cgroup: %w", err)
		}
		g.dirs[controller] = dir
	}
	return g, nil
}

// joinFiles are the files into which a thread's (v1) or a process's (v2) id is written to join.
func (g cgroup) joinFiles() []string {
	var out []string
	for controller, dir := range g.dirs {
		file := "tasks"
		if controller == "" {
			file = "cgroup.procs"
		}
		out = append(out, filepath.Join(dir, file))
	}
	return out
}

const cpuPeriodMicroseconds = 100_000

// limit writes the limits of a spec; none is written as none, since the folder may have had another instance.
func (g cgroup) limit(r pando.Resources) error {
	type setting struct{ controller, v1, v2, value1, value2 string }
	quota := int64(r.CPUs * cpuPeriodMicroseconds)
	settings := []setting{
		{"cpu", "cpu.cfs_quota_us", "cpu.max", orText(quota, "-1"), orText(quota, "max") + " " + strconv.Itoa(cpuPeriodMicroseconds)},
		{"memory", "memory.limit_in_bytes", "memory.max", orText(r.MemoryBytes, "-1"), orText(r.MemoryBytes, "max")},
		{"pids", "pids.max", "pids.max", orText(r.PIDs, "max"), orText(r.PIDs, "max")},
	}
	wanted := map[string]bool{"cpu": r.CPUs > 0, "memory": r.MemoryBytes > 0, "pids": r.PIDs > 0}
	for _, s := range settings {
		dir, file, value := g.dirs[s.controller], s.v1, s.value1
		if unified, ok := g.dirs[""]; ok {
			dir, file, value = unified, s.v2, s.value2
		}
		err := errors.New("the controller is not mounted")
		if dir != "" {
			err = os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
		}
		if err != nil && wanted[s.controller] {
			return fmt.Errorf("limit %s of an instance: %w", s.controller, err)
		}
	}
	return nil
}

func orText(n int64, none string) string {
	if n <= 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

func (g cgroup) file(controller, v1, v2 string) string {
	if dir, ok := g.dirs[""]; ok {
		return filepath.Join(dir, v2)
	}
	return filepath.Join(g.dirs[controller], v1)
}

func number(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// field reads "name value" from a file of such lines.
func field(path, name string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

func (g cgroup) usage() pando.Usage {
	u := pando.Usage{
		MemoryBytes: number(g.file("memory", "memory.usage_in_bytes", "memory.current")),
		PIDs:        number(g.file("pids", "pids.current", "pids.current")),
		CPU:         time.Duration(number(g.file("cpuacct", "cpuacct.usage", ""))),
	}
	if dir, ok := g.dirs[""]; ok {
		u.CPU = time.Duration(field(filepath.Join(dir, "cpu.stat"), "usage_usec")) * time.Microsecond
	}
	return u
}

// oomKilled says whether the kernel has killed something of the sandbox for its memory.
func (g cgroup) oomKilled() bool {
	return field(g.file("memory", "memory.oom_control", "memory.events"), "oom_kill") > 0
}

func (g cgroup) remove() error {
	var errs []error
	for _, dir := range g.dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
