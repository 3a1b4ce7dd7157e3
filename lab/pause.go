package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando/driver/sandbox/cgroup"
)

// freezer is the cgroup in which a host is frozen: of the freezer's hierarchy, or of v2.
type freezer struct {
	dir  string // of the host
	leaf string // for processes outside dir
	v2   bool
}

// freezerRoot returns the hierarchy that freezes, and whether it is of v2.
func freezerRoot() (root string, v2 bool) {
	if _, err := os.Stat(filepath.Join(cgroup.Root, "cgroup.controllers")); err == nil {
		return cgroup.Root, true
	}
	return filepath.Join(cgroup.Root, "freezer"), false
}

func (l *Lab) freezer(h Host) (freezer, error) {
	root, v2 := freezerRoot()
	f := freezer{v2: v2}
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		return f, fmt.Errorf("pause lab host %s: %w; mount the freezer's cgroups at %s", h.Name, err,
			root)
	}
	f.dir = filepath.Join(root, l.groups.name, h.Name)
	f.leaf = f.dir
	if f.v2 { // a v2 group with controllers holds no processes of its own
		f.leaf = filepath.Join(f.dir, "paused")
	}
	return f, nil
}

// Pause stops every process of a host, until Resume or Heal. Its connections and its leases do not
// end by it; they time out.
func (l *Lab) Pause(name string) error {
	h, err := l.member(name)
	if err != nil {
		return err
	}
	if !h.alive() {
		return fmt.Errorf("pause lab host %s: %w: its first process has ended; boot it first "+
			"(`pando lab boot %[1]s`)", name, fs.ErrNotExist)
	}
	f, err := l.freezer(h)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.leaf, 0o755); err != nil {
		return fmt.Errorf("pause lab host %s: %w", name, err)
	}
	if err = f.gather(h); err == nil {
		err = f.set(true)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pause lab host %s: %w", name, err), f.set(false))
	}
	return nil
}

// Resume ends a pause. A host that is not paused stays as it is.
func (l *Lab) Resume(name string) error {
	h, err := l.member(name)
	if err != nil || !l.paused(h) {
		return err
	}
	f, err := l.freezer(h)
	if err == nil {
		err = f.set(false)
	}
	if err != nil {
		return fmt.Errorf("resume lab host %s: %w", name, err)
	}
	return nil
}

func (l *Lab) paused(h Host) bool {
	f, err := l.freezer(h)
	return err == nil && f.wanted()
}

// gather moves every process of a host into its cgroup. A process that forks meanwhile is found by
// the next pass.
func (f freezer) gather(h Host) error {
	for range removeTries {
		moved := false
		for _, pid := range processesOf(h) {
			if f.holds(pid) {
				continue
			}
			err := os.WriteFile(filepath.Join(f.leaf, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			moved = true
		}
		if !moved {
			return nil
		}
	}
	return fmt.Errorf("its processes fork without end: %w", unix.EBUSY)
}

// holds reports whether a process is in the host's cgroup or below it.
func (f freezer) holds(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return true // it has ended
	}
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 || f.v2 != (part[1] == "") || !f.v2 && part[1] != "freezer" {
			continue
		}
		return strings.Contains(part[2]+"/", f.below())
	}
	return false
}

// below returns the host's part of a path of cgroups.
func (f freezer) below() string {
	at := strings.Index(f.dir, "/pando-lab/")
	return f.dir[at:] + "/"
}

// processesOf returns the processes in the pid namespace of a host.
func processesOf(h Host) []int {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.Pid))
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Sandboxes have pid namespaces below the host's.
		if in(pid, own) {
			out = append(out, pid)
		}
	}
	return out
}

// in reports whether a process is in a pid namespace or in one below it.
func in(pid int, own string) bool {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/pid", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && fmt.Sprintf("pid:[%d]", st.Ino) == own {
			unix.Close(fd)
			return true
		}
		parent, perr := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		unix.Close(fd)
		fd, err = parent, perr
	}
	return false
}

const freezeWaitMax = 10 * time.Second

// set freezes or thaws the host's cgroup, and returns when the kernel has done so.
func (f freezer) set(frozen bool) error {
	file, value := f.file(frozen)
	if err := os.WriteFile(filepath.Join(f.dir, file), []byte(value), 0); err != nil {
		if !frozen && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for range int(freezeWaitMax / time.Millisecond) {
		if f.is() == frozen {
			return nil
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(time.Millisecond)}, nil)
	}
	return fmt.Errorf("the kernel did not finish within %s: %w", freezeWaitMax, unix.ETIMEDOUT)
}

func (f freezer) file(frozen bool) (name, value string) {
	switch {
	case f.v2 && frozen:
		return "cgroup.freeze", "1"
	case f.v2:
		return "cgroup.freeze", "0"
	case frozen:
		return "freezer.state", "FROZEN"
	}
	return "freezer.state", "THAWED"
}

// is reports whether all processes are frozen.
func (f freezer) is() bool {
	if f.v2 {
		text, _ := os.ReadFile(filepath.Join(f.dir, "cgroup.events"))
		return strings.Contains(string(text), "frozen 1")
	}
	text, _ := os.ReadFile(filepath.Join(f.dir, "freezer.state"))
	return strings.TrimSpace(string(text)) == "FROZEN"
}

// wanted reports whether the host was paused.
func (f freezer) wanted() bool {
	file, value := f.file(true)
	if !f.v2 {
		file, value = "freezer.self_freezing", "1"
	}
	text, _ := os.ReadFile(filepath.Join(f.dir, file))
	return strings.TrimSpace(string(text)) == value
}

func pidText(h Host) string { return strconv.Itoa(h.Pid) }
