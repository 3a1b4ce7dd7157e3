package process

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/logfile"
)

func TestMemoryHogIsKilledAndSaysWhy(t *testing.T) {
	d := newDriver(t, 0)
	other := run(t, d, nil, "sleep", "60")
	b := run(t, d, func(s *pando.Spec) { s.Resources.MemoryBytes = 24 << 20 }, "python3", "-c",
		"b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1")
	if e := exited(t, b); !e.OOMKilled || e.Signal != "SIGKILL" {
		t.Errorf("it exited with %+v, want it killed for its memory", e)
	}
	if got := inside(t, other, "echo here"); got != "here" {
		t.Errorf("another instance answers %q", got)
	}
}

func TestForkBombFillsItsOwnSandboxOnly(t *testing.T) {
	const most = 40
	// A process that cannot fork any more stays, so the sandbox stays full.
	const bomb = `import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(600)`
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.Resources.PIDs = most
	}, "python3", "-c", bomb)
	awaitUsage(t, b, func(u pando.Usage) bool {
		if u.PIDs > most {
			t.Fatalf("%d processes, at most %d", u.PIDs, most)
		}
		return u.PIDs > most/2
	})
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitUsage(t, b, func(u pando.Usage) bool { return u.PIDs == 0 })
}

// A spec without a process limit still has a bound; threads count.
func TestForkBombIsBoundedWithoutALimitInTheSpec(t *testing.T) {
	const threads = `import threading, time
while True:
    try:
        threading.Thread(target=time.sleep, args=(60,)).start()
    except RuntimeError:
        time.sleep(60)`
	b := run(t, newDriver(t, 0), nil, "python3", "-c", threads)
	awaitUsage(t, b, func(u pando.Usage) bool {
		if u.PIDs > pando.PIDsDefault {
			t.Fatalf("%d threads, at most %d", u.PIDs, pando.PIDsDefault)
		}
		return u.PIDs == pando.PIDsDefault
	})
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitUsage(t, b, func(u pando.Usage) bool { return u.PIDs == 0 })
}

func TestCommandInAFullSandboxFailsWithTheCause(t *testing.T) {
	const forks = "import os, time\nwhile True:\n  try:\n    if os.fork() == 0: break\n  except " +
		"OSError: time.sleep(0.01)\ntime.sleep(60)"
	b := run(t, newDriver(t, 0), func(s *pando.Spec) { s.Resources.PIDs = 9 }, "python3", "-c", forks)
	awaitUsage(t, b, func(u pando.Usage) bool { return u.PIDs == 9 })
	if _, _, err := b.Exec(t.Context(), []string{"true"}); err == nil ||
		!strings.Contains(err.Error(), "resources.pids") {
		t.Errorf("got %v, want it to name the limit", err)
	}
}

func TestSpinnerIsHeldToItsShare(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.Resources.CPUs = 0.05
	}, "sh", "-c", "while :; do :; done")
	begin := time.Now()
	awaitUsage(t, b, func(u pando.Usage) bool { return u.CPU > 60*time.Millisecond })
	// Twelve periods' worth on each of two CPUs. The first may be nearly over, and the next is used
	// up at once.
	if took := time.Since(begin); took < 800*time.Millisecond {
		t.Errorf("60 ms of CPU in %s, at 0.05 CPUs", took)
	}
}

func TestOutputOfAnyKindIsKeptAndNeverTooLong(t *testing.T) {
	for name, script := range map[string]string{
		"one line of 3 MiB": "head -c 3000000 /dev/zero | tr '\\0' x",
		"binary":            "head -c 100000 /dev/urandom",
		"terminal commands": `printf '\033[2J\033]0;title\007danger\n'`,
		"many lines":        "seq 100000",
		"nothing":           "true",
	} {
		t.Run(name, func(t *testing.T) {
			b := run(t, newDriver(t, 0), nil, "sh", "-c", script)
			e := exited(t, b)
			text := strings.Join(e.LastLines, "\n")
			if len(e.LastLines) > 20 || len(text) > 20*2*logfile.LineBytesMax || !utf8.ValidString(text) ||
				strings.ContainsRune(text, '\033') {
				t.Errorf("%d lines, %d bytes: %.200q", len(e.LastLines), len(text), text)
			}
			if (name == "nothing") != (text == "") {
				t.Errorf("last lines %.200q", text)
			}
		})
	}
}

func TestClosedOutputHarmsNobody(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sh", "-c", "exec >&- 2>&- <&-; exit 5")
	if e := exited(t, b); e.Code != 5 {
		t.Errorf("it exited with %+v, want 5", e)
	}
}

// A log folder on a full disk loses lines; no program is affected.
func TestFullDiskUnderTheLogsStopsNobody(t *testing.T) {
	d := newDriver(t, 0)
	if err := unix.Mount("tmpfs", d.LogDir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.LogDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b := run(t, d, nil, "sh", "-c", "head -c 1000000 /dev/zero; exit 4")
	if e := exited(t, b); e.Code != 4 {
		t.Errorf("it exited with %+v, want 4", e)
	}
	fill(t, filepath.Join(d.LogDir, "fill"))
	next := run(t, d, func(s *pando.Spec) {
		s.Name = "next"
	}, "sh", "-c", "for n in $(seq 1000); do echo $n; sleep 0.05; done")
	if err := os.Remove(filepath.Join(d.LogDir, "fill")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Remove(t.Context()),
		os.RemoveAll(d.logDir(b.Service(), b.Instance()))); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(next.LastLines(1)) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("there is room again, but nothing in the log")
		}
	}
}

// fill writes a file until the disk is full, to the last inode.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(bytes.Repeat([]byte{1}, 4096)); err != nil {
			return
		}
	}
}

// 500 sandboxes later there are no more descriptors, links, mounts or cgroups than before.
func TestManyLivesLeaveNothing(t *testing.T) {
	d := newDriver(t, 2)
	live := func() {
		b := run(t, d, nil, "true")
		exited(t, b)
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	settled := func(most things) things {
		for deadline := time.Now().Add(patience); ; {
			d.pool.mu.Lock()
			quiet := len(d.pool.ready) == 2 && len(d.pool.taken) == 2
			d.pool.mu.Unlock()
			now := inventory(t) // of a pool that is full already
			if quiet && !now.exceed(most) || time.Now().After(deadline) {
				return now
			}
		}
	}
	for range 5 {
		live()
	}
	before := settled(things{1000, 1000, 1000, 1000})
	lives := 50
	if !testing.Short() {
		lives = 500
	}
	for range lives {
		live()
	}
	if after := settled(before); after.exceed(before) {
		t.Errorf("before: %+v; after %d lives: %+v; open: %v", before, lives, after, descriptors(t))
	}
}

// things are counts that must not grow.
type things struct{ descriptors, mounts, cgroups, links int }

func (a things) exceed(b things) bool {
	return a.descriptors > b.descriptors || a.mounts > b.mounts || a.cgroups > b.cgroups ||
		a.links > b.links
}

// descriptors lists the open files of this process.
func descriptors(t *testing.T) (open []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil {
			open = append(open, to)
		}
	}
	return open
}

func inventory(t *testing.T) things {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range fds {
		// The runtime's own descriptors vary. One descriptor is the folder's own.
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil &&
			!strings.HasPrefix(to, "anon_inode:") {
			n++
		}
	}
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // the pool is at work
		links, err = netlink.LinkList()
	}
	if err != nil {
		t.Fatal(err)
	}
	return things{n, bytes.Count(mounts, []byte("\n")), remains(t), len(links)}
}
