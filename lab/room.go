package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando/driver/sandbox/cgroup"
)

// groups are the cgroups of a lab's hosts. Each host sees its own as the root of the hierarchies.
type groups struct {
	in   cgroup.Hierarchies
	name string
}

// openGroups finds the cgroups of the lab in a directory. Their name is a hash of the directory.
func openGroups(dir string) (groups, error) {
	in, err := cgroup.Open(cgroup.Root)
	if err != nil {
		return groups{}, fmt.Errorf("cgroups of the lab: %w", err)
	}
	h := fnv.New64a()
	h.Write([]byte(dir))
	return groups{in, "pando-lab/" + strconv.FormatUint(h.Sum64(), 36)}, nil
}

// room is a host's own folders on this machine: source -> place on the host.
type room struct {
	Binds map[string]string `json:"binds"`
}

// data is the default data folder of Pando on every host. A lab host covers the folder above it, so
// the machine's own data folder is no mount point of the lab. The kernel detaches a mount when its
// mount point is removed, even in another namespace.
const data = "/var/lib/pando"

// room makes the room of a host and returns it as an argument of its init.
func (g groups) room(dir, name string) (string, error) {
	r := room{Binds: map[string]string{}}
	own := filepath.Join(dir, "hosts", name)
	if err := os.MkdirAll(own, 0o755); err != nil {
		return "", err
	}
	r.Binds[own] = data
	group, err := g.in.Make(g.name + "/" + name)
	if err != nil {
		return "", err
	}
	e := group.Entry()
	for _, tasks := range e.Tasks {
		controller, _, _ := strings.Cut(strings.TrimPrefix(tasks, "/"), "/")
		r.Binds[filepath.Join(cgroup.Root, filepath.Dir(tasks))] = filepath.Join(cgroup.Root, controller)
	}
	if e.Folder != "" {
		r.Binds[filepath.Join(cgroup.Root, e.Folder)] = cgroup.Root
	}
	text, err := json.Marshal(r)
	return string(text), err
}

// enter mounts the host's own folders over the machine's.
func (r room) enter() error {
	if err := cover(filepath.Dir(data)); err != nil {
		return fmt.Errorf("give the host its own %s: %w", filepath.Dir(data), err)
	}
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	for from, to := range r.Binds {
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("give the host its own %s: %w", to, err)
		}
	}
	return nil
}

// cover puts the host's own file system over a folder. The entries of the folder stay visible in
// it. An entry that the machine adds later does not appear.
func cover(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	below, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer below.Close()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, e := range entries {
		from, to := fmt.Sprintf("/proc/self/fd/%d/%s", below.Fd(), e.Name()), filepath.Join(dir, e.Name())
		if to == data {
			continue
		}
		// Else the entry has just gone.
		if err := uncover(e, from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// uncover makes an entry of a covered folder visible again.
func uncover(e fs.DirEntry, from, to string) error {
	switch {
	case e.Type() == fs.ModeSymlink:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case e.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	case e.Type().IsRegular():
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	default:
		return nil // a socket or a device of the machine
	}
	return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

// remove removes the cgroups of every host, from the leaves up. The hosts have ended, so the groups
// are empty.
func (g groups) remove() error {
	var errs []error
	for _, root := range g.roots() {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(root,
			g.name), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, dir := range slices.Backward(dirs) {
			if err := removeGroup(dir); err != nil {
				errs = append(errs, err)
			}
		}
	}
	for _, root := range g.roots() {
		_ = os.Remove(filepath.Join(root, filepath.Dir(g.name))) // another lab may use it
	}
	return errors.Join(errs...)
}

// roots returns the hierarchies in which hosts have cgroups, the freezer's included.
func (g groups) roots() []string {
	if root, v2 := freezerRoot(); !v2 {
		return append(g.in.Roots(), root)
	}
	return g.in.Roots()
}

// removeGroup removes a cgroup. Its processes are gone, or about to end.
func removeGroup(dir string) error {
	for range removeTries {
		switch err := os.Remove(dir); {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			return nil
		case !errors.Is(err, unix.EBUSY):
			return err
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(time.Millisecond)}, nil)
	}
	return fmt.Errorf("cgroup %s: %w", dir, unix.EBUSY)
}

// removeTries is the number of tries to remove a cgroup, a millisecond apart.
const removeTries = 1000

// inits returns the first processes of a lab's hosts. Their arguments name the lab, so inits finds
// them even without a record.
func inits(dir string) []Host {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var out []Host
	for _, file := range files {
		text, err := os.ReadFile(file)
		words := bytes.Split(text, []byte{0})
		if err != nil || len(words) < 4 || string(words[1]) != "lab-init" || string(words[3]) != dir {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		out = append(out, Host{Name: string(words[2]), Pid: pid, Start: startOf(pid)})
	}
	return out
}
