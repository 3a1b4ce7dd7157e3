package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// files writes files below a folder. The names of the kernel are known, so a folder of plain files
// stands for a hierarchy.
func files(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func content(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// v2Group returns a group of a v2 hierarchy of plain files.
func v2Group(t *testing.T, names ...string) (string, *Group) {
	t.Helper()
	root := t.TempDir()
	files(t, root, map[string]string{"cgroup.controllers": "cpu memory pids"})
	h, err := Open(root)
	if err != nil || !h.v2 {
		t.Fatalf("%+v: %v", h, err)
	}
	g, err := h.Make("pando/h1/web")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		files(t, root, map[string]string{"pando/h1/web/" + name: ""})
	}
	return filepath.Join(root, "pando/h1/web"), g.(*Group)
}

// v1Group returns a group of v1 hierarchies of plain files.
func v1Group(t *testing.T, names ...string) (string, *Group) {
	t.Helper()
	root := t.TempDir()
	for _, c := range controllers {
		files(t, root, map[string]string{c + "/tasks": ""})
	}
	h, err := Open(root)
	if err != nil || h.v2 {
		t.Fatalf("%+v: %v", h, err)
	}
	g, err := h.Make("pando/h1/web")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c, file, _ := strings.Cut(name, "/")
		files(t, root, map[string]string{c + "/pando/h1/web/" + file: ""})
	}
	return root, g.(*Group)
}

func TestLimitsAreWrittenInTheWordsOfV2(t *testing.T) {
	dir, g := v2Group(t, "cpu.max", "memory.max", "memory.swap.max", "pids.max")
	for _, c := range []struct {
		limits                  pando.Resources
		cpu, memory, swap, pids string
	}{
		{pando.Resources{CPUs: 1.5, MemoryBytes: 1 << 20, PIDs: 9}, "15000 10000", "1048576", "0", "9"},
		{pando.Resources{CPUs: 0.05}, "5000 100000", "max", "", "2048"},
		{pando.Resources{CPUs: 1e-9, MemoryBytes: 5, PIDs: 1}, "1000 100000", "5", "0", "1"},
		{pando.Resources{}, "max 100000", "max", "", "2048"},
	} {
		for _, name := range []string{"cpu.max", "memory.max", "memory.swap.max", "pids.max"} {
			files(t, dir, map[string]string{name: ""})
		}
		if err := g.Limit(c.limits); err != nil {
			t.Fatal(err)
		}
		got := []string{content(t, dir, "cpu.max"), content(t, dir, "memory.max"),
			content(t, dir, "memory.swap.max"), content(t, dir, "pids.max")}
		if want := []string{c.cpu, c.memory, c.swap, c.pids}; !slices.Equal(got, want) {
			t.Errorf("%+v: %q, want %q", c.limits, got, want)
		}
	}
}

func TestLimitsAreWrittenInTheWordsOfV1(t *testing.T) {
	root, g := v1Group(t, "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us",
		"memory/memory.limit_in_bytes", "pids/pids.max")
	if err := g.Limit(pando.Resources{CPUs: 0.5, MemoryBytes: 4096}); err != nil {
		t.Fatal(err)
	}
	got := []string{
		content(t, root, "cpu/pando/h1/web/cpu.cfs_quota_us"),
		content(t, root, "cpu/pando/h1/web/cpu.cfs_period_us"),
		content(t, root, "memory/pando/h1/web/memory.limit_in_bytes"),
		content(t, root, "pids/pando/h1/web/pids.max"),
	}
	if want := []string{"5000", "10000", "4096", "2048"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A limit never creates a file: a folder that is not a cgroup would hold nothing back.
func TestAMissingControllerIsAnErrorOnlyForALimitThatNeedsIt(t *testing.T) {
	dir, g := v2Group(t, "cpu.max")
	if err := g.Limit(pando.Resources{CPUs: 1}); err != nil {
		t.Errorf("the wanted controller exists: %v", err)
	}
	err := g.Limit(pando.Resources{MemoryBytes: 1 << 20})
	if err == nil || !strings.Contains(err.Error(), "memory controller") {
		t.Errorf("the error does not name the controller: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "memory.max")); err == nil {
		t.Error("the limit made a file")
	}
}

func TestUsageIsReadInTheWordsOfBothVersions(t *testing.T) {
	want := pando.Usage{CPU: 1500 * time.Microsecond, MemoryBytes: 8192, PIDs: 3}
	dir, g := v2Group(t)
	files(t, dir, map[string]string{
		"memory.current": "8192\n", "pids.current": "3\n",
		"cpu.stat":      "nr_periods 7\nusage_usec 1500\nuser_usec 9\n",
		"memory.events": "low 0\noom 1\noom_kill 0\n",
	})
	if got := g.Usage(); got != want || g.OOMKilled() {
		t.Errorf("v2: %+v, killed %v", got, g.OOMKilled())
	}
	files(t, dir, map[string]string{"memory.events": "low 0\noom 1\noom_kill 1\n"})
	if !g.OOMKilled() {
		t.Error("v2: a kill is not seen")
	}
	root, g := v1Group(t)
	files(t, root, map[string]string{
		"memory/pando/h1/web/memory.usage_in_bytes": "8192\n", "pids/pando/h1/web/pids.current": "3\n",
		"cpuacct/pando/h1/web/cpuacct.usage":     "1500000\n",
		"memory/pando/h1/web/memory.oom_control": "oom_kill 2\n",
	})
	if got := g.Usage(); got != want || !g.OOMKilled() {
		t.Errorf("v1: %+v, killed %v", got, g.OOMKilled())
	}
	none := pando.Usage{CPU: pando.Uncounted, MemoryBytes: pando.Uncounted, PIDs: pando.Uncounted}
	if _, g := v2Group(t); g.Usage() != none || g.OOMKilled() {
		t.Errorf("a group without counters: %+v", g.Usage())
	}
	files(t, dir, map[string]string{"memory.current": "?\n", "pids.current": "", "cpu.stat": "usage_usec x\n"})
	if _, g = v2Group(t); g.Usage() != none {
		t.Errorf("counters that cannot be read: %+v", g.Usage())
	}
}

func TestTheEntryLeadsIntoEveryHierarchy(t *testing.T) {
	if _, g := v2Group(t); g.Entry().Folder != "/pando/h1/web" || g.Entry().Tasks != nil {
		t.Errorf("v2: %+v", g.Entry())
	}
	_, g := v1Group(t)
	tasks := g.Entry().Tasks
	slices.Sort(tasks)
	want := []string{"/cpu/pando/h1/web/tasks", "/cpuacct/pando/h1/web/tasks",
		"/memory/pando/h1/web/tasks", "/pids/pando/h1/web/tasks"}
	if !slices.Equal(tasks, want) {
		t.Errorf("v1: %q, want %q", tasks, want)
	}
}

func TestPruneStopsAtAGroupInUse(t *testing.T) {
	root := t.TempDir()
	files(t, root, map[string]string{"cgroup.controllers": ""})
	h, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pando/h1/web", "pando/h1/api"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.Prune("pando/h1/web")
	if _, err := os.Stat(filepath.Join(root, "pando/h1/api")); err != nil {
		t.Errorf("prune removed a neighbour: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "pando/h1/web")); err == nil {
		t.Error("the group is still there")
	}
	h.Prune("pando/h1/api")
	if _, err := os.Stat(filepath.Join(root, "pando")); err == nil {
		t.Error("the empty parents are still there")
	}
}

func TestProcessesAreListed(t *testing.T) {
	dir, g := v2Group(t)
	files(t, dir, map[string]string{"cgroup.procs": "12\n7\n"})
	if got, err := g.Processes(); err != nil || !slices.Equal(got, []int{12, 7}) {
		t.Errorf("%v, %v", got, err)
	}
	files(t, dir, map[string]string{"cgroup.procs": "12\nnoise\n"})
	if got, err := g.Processes(); err == nil {
		t.Errorf("noise is read as %v", got)
	}
}
