package process

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A hung shim delays its caller for a while only: it is killed, and its program with it. Stop
// continues a stopped one first, so the test calls what follows.
func TestAHungShimIsKilled(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "/bin/sleep", "1000")
	slot := b.(*sandbox).slot
	if err := unix.Kill(slot.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !slot.stopped(); {
		if time.Now().After(deadline) {
			t.Fatal("SIGSTOP does not stop it")
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- b.(*sandbox).stop(t.Context()) }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(4 * shimWaitMax):
		t.Fatal("Stop does not return")
	}
	if e := exited(t, b); e.Signal != shimEnded {
		t.Errorf("exit %+v", e)
	}
}

// No thread of the agent waits for a sandbox, and no sandbox stays as a zombie.
func TestSandboxesTakeNoThreads(t *testing.T) {
	d := newDriver(t, 0)
	threads := func() int {
		all, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	const n = 30
	before := threads()
	var slots []*slot
	for k := range n {
		s, err := d.newSlot(100 + k)
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, s)
	}
	if grown := threads() - before; grown > n/2 {
		t.Errorf("%d sandboxes take %d threads", n, grown)
	}
	for _, s := range slots {
		if err := s.destroy(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(patience); s.alive(); {
			if time.Now().After(deadline) {
				t.Fatalf("the shim %d is a zombie", s.PID)
			}
		}
	}
}

// An instance's own folders are bounded. Each used to be half of the host's memory.
func TestOwnFoldersAreSmall(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) { s.User = "0" }, "/bin/sleep", "1000")
	code, out, err := b.Exec(t.Context(),
		[]string{"df", "-Pm", "/tmp", "/var/tmp", "/run", "/dev/shm", "/root"})
	if err != nil || code != 0 {
		t.Fatalf("%d %v: %s", code, err, out)
	}
	var sizes []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n")[1:] {
		sizes = append(sizes, strings.Fields(line)[1])
	}
	if want := []string{"512", "512", "64", "512", "64"}; !slices.Equal(sizes, want) {
		t.Errorf("MiB %v, want %v:\n%s", sizes, want, out)
	}
}

// One program without a limit cannot take its whole host.
func TestMemoryIsBoundedByDefault(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	const limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
	got, err := strconv.ParseInt(inside(t, b, limit), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	given := pando.Resources{MemoryBytes: 64 << 20}
	if want := bounded(pando.Resources{}).MemoryBytes; got > want || got < want/2 || want == 0 {
		t.Errorf("the limit is %d, want about %d", got, want)
	}
	if bounded(given) != given {
		t.Errorf("a limit of the spec becomes %+v", bounded(given))
	}
}
