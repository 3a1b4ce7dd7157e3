package cgroup

import (
	"os"
	"testing"
	"time"

	"pando.run/pando"
)

func TestStrainIsReadInTheWordsOfBothVersions(t *testing.T) {
	want := pando.Strain{
		CPU: 1500 * time.Microsecond, Throttled: 40 * time.Microsecond, Memory: 8192, CPUs: 0.5,
		MemoryMax: 65536,
	}
	dir, g := v2Group(t)
	files(t, dir, map[string]string{
		"memory.current": "8192\n", "memory.max": "65536\n", "cpu.max": "50000 100000\n",
		"cpu.stat": "usage_usec 1500\nnr_throttled 3\nthrottled_usec 40\n",
		"memory.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=70\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
	})
	stalled := want
	stalled.Stalled = 70 * time.Microsecond // version 1 has no such file
	if got := g.Strain(); got != stalled {
		t.Errorf("v2: %+v, want %+v", got, stalled)
	}
	root, g1 := v1Group(t)
	files(t, root, map[string]string{
		"memory/pando/h1/web/memory.usage_in_bytes": "8192\n",
		"memory/pando/h1/web/memory.limit_in_bytes": "65536\n",
		"cpu/pando/h1/web/cpu.cfs_quota_us":         "50000\n",
		"cpu/pando/h1/web/cpu.cfs_period_us":        "100000\n",
		"cpu/pando/h1/web/cpu.stat":                 "nr_throttled 3\nthrottled_time 40000\n",
		"cpuacct/pando/h1/web/cpuacct.usage":        "1500000\n",
	})
	if got := g1.Strain(); got != want {
		t.Errorf("v1: %+v, want %+v", got, want)
	}
	for _, group := range []*Group{g, g1} {
		if n := len(group.strain.files); n == 0 || n > 2 {
			t.Errorf("%d files stay open, want 1 or 2", n)
		}
		group.strain.close()
		if len(group.strain.files) != 0 {
			t.Error("files stay open after the end")
		}
	}
}

func TestStrainWithoutLimitsOrCounters(t *testing.T) {
	dir, g := v2Group(t)
	if got := g.Strain(); got != (pando.Strain{}) {
		t.Errorf("without counters: %+v", got)
	}
	files(t, dir, map[string]string{"memory.max": "max\n", "cpu.max": "max 100000\n"})
	for range limitsEvery {
		g.Strain()
	}
	if got := g.Strain(); got.CPUs != 0 || got.MemoryMax != 0 {
		t.Errorf("without limits: %+v", got)
	}
	root, g1 := v1Group(t)
	files(t, root, map[string]string{
		"memory/pando/h1/web/memory.limit_in_bytes": "9223372036854771712\n",
		"cpu/pando/h1/web/cpu.cfs_quota_us":         "-1\n",
		"cpu/pando/h1/web/cpu.cfs_period_us":        "100000\n",
	})
	if got := g1.Strain(); got.CPUs != 0 || got.MemoryMax != 0 {
		t.Errorf("v1 without limits: %+v", got)
	}
}

// The kernel's own files give a growing total, and a new limit counts within limitsEvery readings.
func TestStrainOfTheKernel(t *testing.T) {
	h, g := open(t, Root)
	if h.v2 {
		t.Skip("this machine's hierarchy is v2")
	}
	if err := g.Limit(pando.Resources{CPUs: 0.5, MemoryBytes: 32 << 20}); err != nil {
		t.Fatal(err)
	}
	enter(t, Root, g, "sh", "-c", "while :; do :; done")
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(time.Millisecond) {
		s := g.Strain()
		if s.CPU > 20*time.Millisecond && s.Throttled > 0 && s.CPUs == 0.5 && s.MemoryMax == 32<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a busy group under a limit measures %+v", s)
		}
	}
	if err := g.Limit(pando.Resources{CPUs: 0.25}); err != nil {
		t.Fatal(err)
	}
	for range limitsEvery {
		g.Strain()
	}
	if got := g.Strain().CPUs; got != 0.25 {
		t.Errorf("the limit in force is %g", got)
	}
}

// A meter may take 1 % of a core for 100 instances at ten readings a second: 10 µs each.
func BenchmarkStrain(b *testing.B) {
	h, err := Open(Root)
	if err != nil || os.Geteuid() != 0 {
		b.Skip("control groups need root")
	}
	made, err := h.Make("cgtest-strain/one")
	if err != nil {
		b.Fatal(err)
	}
	g := made.(*Group)
	for b.Loop() {
		g.Strain()
	}
	if err := g.Remove(); err != nil {
		b.Error(err)
	}
	h.Prune("cgtest-strain")
}
